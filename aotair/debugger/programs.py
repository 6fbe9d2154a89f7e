"""Which instruction of a bucket gives wrong numbers, and why: itself, its kernel, memory, a wait, a list?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import Artifact
from aotair_runtime.errors import AotairError
from aotair_runtime.format.debug_data import DebugData
from aotair_runtime.format.schema import Bucket, EntryPoint, HostArg, Program, Tolerance

from ..diff.flow import Flow, Step, constant_names, flow_of
from ..prove.apart import apart
from ..prove.runs import Run
from .finding import Finding
from .races import races
from .trail import Seen, Trail, worst


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


def code_of(artifact: Artifact, entry: str, sizes: tuple[int, ...], debug: DebugData | None = None) -> Code:
    """A bucket of an artifact; `debug`: where its instructions come from, where the artifact does not say it. Raises
    AotairError where it has no such bucket."""
    program = artifact.program
    spec = next((one for one in program.entry_points if one.name == entry), None)
    bucket = next((one for one in spec.buckets if one.sizes == sizes), None) if spec is not None else None
    if spec is None or bucket is None:
        raise AotairError("the artifact has no such bucket", where=str(artifact.path), got=f"{entry} {list(sizes)}")
    known = read_debug_data(artifact)
    return Code(program, spec, bucket, known if known.made or debug is None else debug)


def wrong_instruction(
    code: Code, got: Trail, want: Trail, tolerance: Tolerance, intended: Code | None, device: str
) -> Finding | None:
    """The first instruction whose results are not those of the run `want`, or whose arguments are not: what was there
    is gone. `intended`: the program as a build writes it, where the one that ran is somebody's."""
    steps = {step.node: step for step in code.flow().steps}
    for seen in got.values():
        if (was := want.get(seen.name)) is None:
            continue
        if found := worst(seen.given, was.given, tolerance):
            finding = _overwritten(code, seen, was, steps.get(seen.name), tolerance)
            return Finding(**{**finding.__dict__, "apart": found})
        if found := worst(seen.results, was.results, tolerance):
            line = seen.made.line or was.made.line or seen.name
            other = None if intended is None else _written_otherwise(seen.name, steps, intended)
            if other:
                what = f"the instruction is not the one that a build writes: {other}"
                return Finding("instruction", seen.op, what, (seen.name,), (line,), True, found)
            what = f"the kernel of {seen.op} on {device} gives other numbers for the same arguments"
            return Finding("kernel", seen.op, what, (seen.name,), (line,), True, found)
    return None


def _overwritten(code: Code, seen: Seen, was: Seen, step: Step | None, tolerance: Tolerance) -> Finding:
    """An argument that is not what it should be, though all calls before were right."""
    place = next(n for n, pair in enumerate(zip(seen.given, was.given)) if worst((pair[0],), (pair[1],), tolerance))
    writers: list[str] = []
    if step is not None:
        place -= len(seen.given) - len(step.reads)
        steps = code.flow().steps
        sources = step.reads[place] if 0 <= place < len(step.reads) else ()
        writers = [steps[one.origin].node for one in sources if isinstance(one.origin, int)]
    said = f"; {', '.join(writers)} wrote there last" if writers else ""
    what = f"{seen.name} reads something else than it should: its argument was written over before{said}"
    lines = tuple(code.line(name) for name in (*writers, seen.name))
    return Finding("memory", seen.op, what, (*writers, seen.name), lines, bool(writers))


def _written_otherwise(name: str, steps: Mapping[str, Step], intended: Code) -> str:
    """How an instruction differs from that of a build, or nothing."""
    there = next((step for step in intended.flow().steps if step.node == name), None)
    here = steps.get(name)
    if here is None or there is None or (here.op, here.said) == (there.op, there.said):
        return ""
    return f"{here.op}({here.said}) instead of {there.op}({there.said})"


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
