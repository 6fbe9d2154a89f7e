"""Which instruction of a bucket gives wrong numbers, and why: itself, its kernel, memory, a wait, a list?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx.node import Node

from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import Artifact
from aotair_runtime.errors import AotairError
from aotair_runtime.format.debug_data import DebugData
from aotair_runtime.format.schema import Bucket, EntryPoint, HostArg, Program, Tolerance

from ..diff.flow import Flow, Step, constant_names, flow_of
from ..lower.lowerings import UNINITIALISED
from ..prove.apart import apart
from ..prove.runs import Run
from .finding import Finding
from .races import races, writes_over_what_it_reads
from .trail import Seen, Tensors, Trail, compared, worst


@dataclass(frozen=True)
class Code:
    """A bucket's program and where its instructions come from."""

    program: Program
    entry: EntryPoint
    bucket: Bucket
    debug: DebugData

    def flow(self) -> Flow:
        """What each instruction reads and writes."""
        return flow_of(self.program, self.entry, self.bucket, constant_names(self.program), self.debug)

    def line(self, node: str) -> str:
        """The line of the model's code that an instruction comes from, or its name."""
        numbers = [n for n in self.bucket.code if self.program.instructions[n].node == node]
        return (self.debug.of(numbers[0]).line if numbers else "") or node


def code_of(artifact: Artifact, entry: str, sizes: tuple[int, ...]) -> Code:
    """A bucket of an artifact. Raises AotairError where it has no such bucket."""
    program = artifact.program
    spec = next((one for one in program.entry_points if one.name == entry), None)
    bucket = next((one for one in spec.buckets if one.sizes == sizes), None) if spec is not None else None
    if spec is None or bucket is None:
        raise AotairError(
            "the artifact has no bucket of these sizes: it is of another recipe, or of another state of this one",
            where=str(artifact.path),
            got=f"{entry} {list(sizes)}",
        )
    return Code(program, spec, bucket, read_debug_data(artifact))


def wrong_instruction(
    code: Code, got: Trail, want: Trail, tolerance: Tolerance, intended: Code | None, device: str
) -> Finding | None:
    """The first instruction whose results do not follow from what it got, or that got what it should not. `want` is the
    run of the bucket's graph; `intended` the program as a build writes it, where the one that ran is somebody's."""
    flow, other = code.flow(), None if intended is None else intended.flow()
    steps = {step.node: step for step in flow.steps}
    overwritten: list[Finding] = []
    for seen in got.values():
        was, step = want.get(seen.name), steps.get(seen.name)
        if was is None or step is None:
            continue
        line = seen.made.line or was.made.line or seen.name
        if (apart := worst(seen.given, was.given, tolerance)) is not None:
            if (found := _otherwise(line, flow, step, other)) is not None:
                return replace(found, apart=apart)
            overwritten += [replace(one, apart=apart) for one in _overwritten(line, flow, step, seen, was)]
        if (apart := worst(seen.results, _expected(seen, was), tolerance)) is not None:
            item = code.program.instructions[step.number]
            found = _otherwise(line, flow, step, other) or _kernel(line, seen, was, device)
            if found.kind == "kernel" and writes_over_what_it_reads(code.program, code.bucket, item):
                what = f"{seen.name} writes its results over what it reads"
                found = replace(found, kind="memory", what=what)
            return replace(found, apart=apart)
    return _unlike(flow, other) or next(iter(overwritten), None)


def _kernel(line: str, seen: Seen, was: Seen, device: str) -> Finding:
    what = f"the kernel of {seen.op} on {device} gives other numbers for the same arguments"
    same = all(torch.equal(*pair) for pair in compared(seen.given, was.given))
    return Finding("kernel", seen.op, what, (seen.name,), (line,), was.again is not None or same)


def _unlike(flow: Flow, intended: Flow | None) -> Finding | None:
    """The first instruction that is another one than a build writes, whatever it does to the numbers."""
    found = (_otherwise(step.line, flow, step, intended) for step in flow.steps)
    first = next((one for one in found if one is not None), None)
    return None if first is None else replace(first, certain=False)


def _expected(seen: Seen, was: Seen) -> Tensors:
    """What the graph's call leaves where it gets what the instruction got: what was rounded before is no fault of it.
    Where it cannot be called so, what it left."""
    pairs = list(zip(seen.given, was.given))
    same = len(seen.given) == len(was.given) and all(
        (one is None) == (other is None) and (one is None or other is None or one.shape == other.shape)
        for one, other in pairs
    )
    return was.again(seen.given) if was.again is not None and same else was.results


def _otherwise(line: str, flow: Flow, here: Step, intended: Flow | None) -> Finding | None:
    """How an instruction differs from that of a build, if it does: in what it says, or in whose results it reads."""
    there = None if intended is None else next((step for step in intended.steps if step.node == here.node), None)
    if there is None or intended is None:
        return None
    if (here.op, here.said) != (there.op, there.said):
        what = "the instruction is not the one that a build writes: "
        what += f"{here.op}({here.said}) instead of {there.op}({there.said})"
        return Finding("instruction", here.op, what, (here.node,), (line,), True)
    mine, theirs = _read(flow, here), _read(intended, there)
    if mine == theirs:
        return None
    one, other = (", ".join(dict.fromkeys(name for name, _ in read)) or "nothing" for read in (mine, theirs))
    what = f"{here.node} reads {one}, where a build has it read {other}"
    if one == other:
        what = f"{here.node} reads other bytes of {one} than a build has it read"
    came = [read for read in mine if read not in theirs]
    likely = [*came, *(read for read in theirs if read not in mine), (here.node, 0), *theirs]
    calls = tuple(dict.fromkeys(name for name, _ in likely))
    return Finding("memory", here.op, what, calls, (line,), True)


def _read(flow: Flow, step: Step) -> list[tuple[str, int]]:
    """What a step reads: the names of the calls and constants, and how far from where each begins."""
    sources = [source for read in step.reads for source in read]
    names = (flow.steps[s.origin].node if isinstance(s.origin, int) else " ".join(s.origin) for s in sources)
    return list(zip(names, (source.offset for source in sources)))


def _overwritten(line: str, flow: Flow, step: Step, seen: Seen, was: Seen) -> Iterator[Finding]:
    """An argument whose bytes were written last by a call that its numbers do not follow from."""
    before = set() if was.node is None else _before(was.node)
    if not before or any(node.target in UNINITIALISED for node in before):
        return  # memory that nobody wrote to holds what others left there
    names = {node.name for node in before}
    writers = [flow.steps[one.origin].node for read in step.reads for one in read if isinstance(one.origin, int)]
    others = [name for name in writers if name not in names]
    if others:
        what = f"{seen.name} reads something else than it should: {', '.join(others)} wrote there last"
        yield Finding("memory", seen.op, what, (*others, seen.name), (line,))


def _before(node: Node) -> set[Node]:
    """What a call follows from."""
    todo, done = [node], set[Node]()
    while todo:
        for one in todo.pop().all_input_nodes:
            if one not in done:
                done.add(one)
                todo.append(one)
    return done


def missing_waits(code: Code) -> Iterator[Finding]:
    """Calls of different streams over the same memory that nothing puts in order."""
    for race in races(code.program, code.bucket):
        first, second = (code.program.instructions[number] for number in (race.first, race.second))
        what = (
            f"nothing makes {second.node} on stream {second.stream} wait for {first.node} on stream {first.stream}, "
            "and both use the same memory"
        )
        lines = (code.line(second.node), code.line(first.node))
        yield Finding("wait", code.program.ops[second.op].name, what, (second.node, first.node), lines, True)


def listed(code: Code) -> list[str]:
    """The instructions that take a list of the call, by name."""
    items = [code.program.instructions[number] for number in code.bucket.code]
    return [item.node for item in items if any(isinstance(value, HostArg) for _, value in item.kwargs)]


def stale_list(names: Sequence[str], runs: Mapping[str, Run], got: Run, tolerance: Tolerance) -> Finding | None:
    """The instruction whose list is that of the call before: `runs` has what each leaves behind where it alone takes
    the old one."""
    for name in names:
        found = apart(runs[name], got, tolerance)
        if not found.wrong:
            what = f"{name} was replayed with the list of the call before: a captured graph has to be updated with each"
            return Finding("list", name, what, (name,), (), True)
    return None
