"""What does each instruction of a bucket compute, of what? Told by producers, not by numbers, names or addresses.

A plan may place every tensor anew, and another build may number everything anew: what stays is which call's result each
argument is. That is read off the memory: an argument's bytes come from the calls that wrote them last.
"""

import functools
import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from aotair_runtime.errors import MalformedError
from aotair_runtime.format.debug_data import DebugData, Made
from aotair_runtime.format.extents import reach
from aotair_runtime.format.packed import tensor_numbers
from aotair_runtime.format.prologue import as_program
from aotair_runtime.format.schema import (
    Arg,
    Bucket,
    DeviceArg,
    EntryPoint,
    Form,
    GroupArg,
    HostArg,
    Instruction,
    Layout,
    Program,
    Space,
    TensorArg,
    WorkspaceArg,
)
from aotair_runtime.format.torch_names import dtype
from aotair_runtime.format.written import written_arguments, written_names

Place: TypeAlias = tuple[int, int]  # a space, and the number within it
Origin: TypeAlias = int | tuple[str, str]  # the number of a step, or a kind and a name: ("constant", "up.weight")
LASTS = "what lasts"  # the kind of a state or a tensor of the caller's, of which the last step reads what calls wrote
RETURN = "return"  # the op of the last step, which reads outputs and what lasts
OVERWRITE = ("copy_", "fill_", "zero_")  # ops that do not read what they write into


@dataclass(frozen=True)
class Source:
    """Bytes of an argument: what they come from, which of its results, and how far from that one's beginning."""

    origin: Origin
    slot: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Step:
    """A call: its op, its arguments with layouts in the place of tensors, where each tensor's bytes come from, the
    layouts of what it writes, and where it comes from. `number` is that of its instruction (-1: the end)."""

    op: str
    said: str
    reads: tuple[tuple[Source, ...], ...]
    writes: tuple[str, ...]
    number: int
    node: str
    stream: int = 0
    made: Made = field(default_factory=Made)

    @property
    def computes(self) -> str:
        """What the op computes, wherever it writes that: `aten::mul` for `aten::mul_.Tensor` and `aten::mul.out`."""
        name, _, overload = self.op.partition(".")
        plain = name.removesuffix("_")
        is_a_form = plain != name or overload == "out" or overload.endswith("_out")
        return plain if is_a_form else self.op

    @property
    def line(self) -> str:
        """The line of the model's code, or, where none was recorded, the name that the graph gave the call."""
        return self.made.line or self.node


@dataclass(frozen=True)
class Flow:
    """The calls of a bucket in order, the last of which is the end; and the waits: (the step that is over, -1 for the
    beginning; the first that waits for it)."""

    steps: tuple[Step, ...]
    waits: tuple[tuple[int, int], ...]


def flow_of(program: Program, entry: EntryPoint, bucket: Bucket, names: Sequence[str], debug: DebugData) -> Flow:
    """The flow of one bucket. `names` are what the constants are called, by `constant_names`."""
    return _Reader(program, entry, bucket, names, debug).flow()


def constant_names(program: Program) -> list[str]:
    """What the constants are called, in their order: those that are made of others by how they are made."""
    named = {item.name: item.name for item in (*program.constants, *program.prologue.sources)}
    for part in program.prologue.parts:
        own = as_program(program, part)
        (entry,) = own.entry_points
        flow = flow_of(own, entry, part.bucket, [named[item.name] for item in own.constants], DebugData())
        meaning = meanings(flow)[-1][:12]
        for place, item in enumerate(entry.inputs):
            named[item.name] = f"made {meaning}.{place} of weights"
    return [named[item.name] for item in program.constants]


def meanings(flow: Flow) -> list[str]:
    """For each step a digest of all that it computes, from inputs and weights on: equal for equal computations."""
    found: list[str] = []
    for step in flow.steps:
        reads = [
            [(found[s.origin] if isinstance(s.origin, int) else s.origin, s.slot, s.offset) for s in read]
            for read in step.reads
        ]
        text = repr((step.computes, step.said, reads, step.writes))
        found.append(hashlib.sha256(text.encode()).hexdigest())
    return found


@functools.cache
def schema_of(text: str) -> torch.FunctionSchema:
    """The schema of an op, as an artifact has it; the op need not be here. Raises MalformedError."""
    try:
        return torch._C.parse_schema(text)
    except RuntimeError as error:
        raise MalformedError("the schema of an op cannot be read", got=text[:80]) from error


@dataclass(frozen=True)
class _Write:
    """What lies in some memory: which bytes, without gaps or not, and where they come from."""

    start: int
    layout: Layout
    source: Source

    @property
    def stop(self) -> int:
        return self.start + _nbytes(self.layout)

    @property
    def is_dense(self) -> bool:
        return math.prod(self.layout.shape) * dtype(self.layout.dtype).itemsize == _nbytes(self.layout)


@dataclass(frozen=True)
class Extent:
    """Bytes of a tensor: runs of `run` bytes that begin `start` bytes from somewhere, one for each place along `outer`:
    how many, and how many bytes apart."""

    start: int
    run: int
    outer: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, layout: Layout, start: int) -> "Extent":
        run, outer = dtype(layout.dtype).itemsize, list[tuple[int, int]]()
        steps = sorted((stride * run, size) for size, stride in zip(layout.shape, layout.strides) if size != 1)
        for step, size in steps:
            if step == run and not outer:
                run *= size
            else:
                outer.append((size, step))
        return cls(start, 0 if 0 in layout.shape else run, tuple(outer))

    @property
    def unit(self) -> int:
        """What divides where each run begins, and how long it is."""
        return math.gcd(self.start, self.run, *(step for _, step in self.outer))

    @property
    def stop(self) -> int:
        """Where its last byte ends."""
        return self.start + (self.run and self.run + sum((count - 1) * step for count, step in self.outer))

    def mask(self, unit: int, low: int, size: int) -> torch.Tensor:
        """Which units of the `size` bytes from `low` on the tensor has."""
        if not self.run:
            return torch.zeros(size // unit, dtype=torch.bool)
        begin = min(self.start, low)
        whole = torch.zeros((max(low + size, self.stop) - begin) // unit, dtype=torch.bool)
        shape = (*(count for count, _ in self.outer), self.run // unit)
        strides = (*(step // unit for _, step in self.outer), 1)
        whole.as_strided(shape, strides, (self.start - begin) // unit).fill_(True)
        return whole[(low - begin) // unit : (low - begin + size) // unit]


class _Reader:
    """Follows the instructions of a bucket, and what lies where meanwhile."""

    def __init__(self, program: Program, entry: EntryPoint, bucket: Bucket, names: Sequence[str], debug: DebugData):
        self._program, self._bucket, self._debug = program, bucket, debug
        self._entry, self._names = entry, names
        self._memory: dict[Place, list[_Write]] = {}
        self._steps: list[Step] = []

    def flow(self) -> Flow:
        recorded: dict[object, int] = {}
        last: dict[int, int] = {}  # by stream: its latest step
        pending: dict[int, list[int]] = {}  # by stream: the steps that its next one waits for
        waits = []
        for number in self._bucket.code:
            item = self._program.instructions[number]
            if item.form == Form.RECORD:
                recorded[item.args[0]] = last.get(item.stream, -1)
            elif item.form == Form.WAIT:
                pending.setdefault(item.stream, []).append(recorded.get(item.args[0], -1))
            else:
                step = len(self._steps)
                waits += [(before, step) for before in pending.pop(item.stream, [])]
                self._add(number, item)
                last[item.stream] = step
        waits += [(before, len(self._steps)) for group in pending.values() for before in group]
        self._end()
        return Flow(tuple(self._steps), tuple(dict.fromkeys(waits)))

    def _add(self, number: int, item: Instruction) -> None:
        op = self._program.ops[item.op]
        schema = schema_of(op.schema)
        overwrites = item.form == Form.EFFECT and op.name.split("::")[-1].split(".")[0] in OVERWRITE
        values = (*item.args[overwrites:], *(value for _, value in item.kwargs))
        reads = tuple(self._sources(number) for number in tensor_numbers(values))
        said = ", ".join(self._arguments(item, schema))
        into = [arg.index for arg in written_arguments(item, schema, written_names(schema))]
        written = [*(n for n in item.outs if n >= 0), *into]
        step = len(self._steps)
        layouts = [self._layout(n) for n in written]
        for slot, tensor in enumerate(written):
            self._write(tensor, Source(step, slot))
        made = self._debug.of(number)
        texts = tuple(map(layout_text, layouts))
        self._steps.append(Step(op.name, said, reads, texts, number, item.node, item.stream, made))

    def _end(self) -> None:
        """The outputs, and what lies in states and in the caller's tensors after the call."""
        reads = [self._sources(number) for number in self._bucket.outputs]
        lasting = [place for place in sorted(self._memory) if place[0] in (Space.STATE, Space.CALLER)]
        for place in lasting:
            left = self._memory[place]
            reads.append((Source((LASTS, self._name(*place))), *(write.source for write in left)))
        said = ", ".join(layout_text(self._layout(number)) for number in self._bucket.outputs)
        self._steps.append(Step(RETURN, said, tuple(reads), (), -1, "the end"))

    # ---- memory ---------------------------------------------------------------------------------------------------

    def _write(self, number: int, source: Source) -> None:
        place, start = self._place(number)
        made = _Write(start, self._layout(number), source)
        there = self._memory.setdefault(place, [])
        if made.is_dense:
            there[:] = [one for one in there if not made.start <= one.start <= one.stop <= made.stop]
        there.append(made)

    def _sources(self, number: int) -> tuple[Source, ...]:
        """Where the bytes of a tensor come from, the latest first."""
        place, start = self._place(number)
        layout = self._layout(number)
        stop = start + _nbytes(layout)
        if start == stop:
            return ()  # a tensor without numbers
        there = [one for one in reversed(self._memory.get(place, [])) if one.start < stop and start < one.stop]
        if there and there[0].is_dense and there[0].start <= start and stop <= there[0].stop:
            return (_from(there[0], start),)
        found = []
        wanted = Extent.of(layout, start)
        unit = math.gcd(Extent.of(layout, 0).unit, *(Extent.of(one.layout, one.start - start).unit for one in there))
        left = wanted.mask(unit, start, stop - start)
        for write in there:
            theirs = Extent.of(write.layout, write.start).mask(unit, start, stop - start)
            if bool((left & theirs).any()):
                found.append(_from(write, start))
                left &= ~theirs
        if place[0] == Space.ARENA or not bool(left.any()):
            return tuple(found)
        kind = {Space.CONSTANT: "constant", Space.STATE: "state"}.get(Space(place[0]), "input")
        return (*found, Source((kind, self._name(*place)), 0, start))

    def _place(self, number: int) -> tuple[Place, int]:
        item = self._bucket.tensors[number]
        space = Space.CONSTANT if item.space == Space.PACKED else item.space
        return (int(space), 0 if space == Space.ARENA else item.index), item.offset

    def _name(self, space: int, index: int) -> str:
        if space == Space.CONSTANT:
            return self._names[index]
        return self._program.state[index].name if space == Space.STATE else self._entry.inputs[index].name

    def _layout(self, number: int) -> Layout:
        return self._program.layouts[self._bucket.tensors[number].layout]

    # ---- arguments ------------------------------------------------------------------------------------------------

    def _arguments(self, item: Instruction, schema: torch.FunctionSchema) -> Iterator[str]:
        """The arguments in the order of the op's schema, those that are left out with what they are then."""
        given: dict[str, Arg] = dict(zip((argument.name for argument in schema.arguments), item.args))
        given |= dict(item.kwargs)
        for argument in schema.arguments:
            named = f"{argument.name}=" if argument.kwarg_only else ""
            if argument.name in given:
                yield named + self._said(given[argument.name])
            elif argument.has_default_value():
                yield f"{named}{argument.default_value!r}"

    def _said(self, arg: object) -> str:
        if isinstance(arg, TensorArg):
            return layout_text(self._layout(arg.index))
        if isinstance(arg, tuple):
            return f"[{', '.join(map(self._said, arg))}]"
        if isinstance(arg, DeviceArg):
            return "device"
        if isinstance(arg, HostArg):
            return f"the list {self._entry.inputs[arg.input].name}"
        if isinstance(arg, WorkspaceArg):
            return f"workspace of {self._program.ops[arg.op].name}"
        if isinstance(arg, GroupArg):
            return f"the ranks along {self._program.mesh[arg.axis].name}"
        return str(arg.name) if hasattr(arg, "name") else repr(arg)


def layout_text(layout: Layout) -> str:
    """`float32[2, 4]`, with strides where the tensor has gaps or lies otherwise than row by row."""
    plain, step = [], 1
    for size in reversed(layout.shape):
        plain.append(step)
        step *= max(size, 1)
    strides = "" if tuple(reversed(plain)) == layout.strides else f" strides {list(layout.strides)}"
    return f"{layout.dtype}{list(layout.shape)}{strides}"


def shapeless(step: Step) -> tuple[object, ...]:
    """What a step calls and of what constants, whatever the sizes are."""
    named = [s.origin for read in step.reads for s in read if not isinstance(s.origin, int)]
    return (step.computes, step.made.module, tuple(named))


def users(flow: Flow) -> dict[int, list[tuple[int, int]]]:
    """For each step that is read, the steps that read it, and as which of their tensors."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, step in enumerate(flow.steps):
        for place, read in enumerate(step.reads):
            for source in read:
                if isinstance(source.origin, int):
                    found[source.origin].append((number, place))
    return found


def producers(step: Step) -> Iterator[int]:
    """The steps that a step reads, with repetitions."""
    for read in step.reads:
        for source in read:
            if isinstance(source.origin, int):
                yield source.origin


def _from(write: _Write, start: int) -> Source:
    return Source(write.source.origin, write.source.slot, start - write.start)


def _nbytes(layout: Layout) -> int:
    return reach(layout.shape, layout.strides) * dtype(layout.dtype).itemsize
