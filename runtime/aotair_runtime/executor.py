"""A bucket's instructions, bound to fixed addresses: what a device captures and replays."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from .check import READ_ONLY, dtype, layout, memory_format
from .devices import Space as DeviceSpace
from .errors import CaptureError, MalformedError
from .schema import (
    Bucket,
    DeviceArg,
    DTypeArg,
    Form,
    Instruction,
    LayoutArg,
    MemoryFormatArg,
    Placement,
    Program,
    Space,
    TensorArg,
)


@dataclass(frozen=True)
class Memory:
    """The memory that programs address: the space with the arena, constants and states in the program's order, and
    the caller's tensors that are used in place, by their position among the inputs."""

    space: DeviceSpace
    constants: Sequence[torch.Tensor]
    states: Sequence[torch.Tensor]
    in_place: Mapping[int, torch.Tensor]


@dataclass(frozen=True)
class Bound:
    """One bucket at fixed addresses: its tensors for inputs and outputs, and the calls of a replay in order.

    `nodes` names each call as the builder's graph did, for errors; `addressed` is where the last byte of the arena that
    a tensor reaches ends.
    """

    where: str
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    calls: tuple[Callable[[], object], ...]
    nodes: tuple[str, ...]
    addressed: int

    def run(self) -> None:
        """Make the calls. Raises CaptureError, naming the bucket and the instruction, where one fails."""
        done = 0
        try:
            for call in self.calls:
                call()
                done += 1
        except Exception as error:
            what = f"instruction {done} ({self.nodes[done]}) failed: {error}"
            raise CaptureError(what, where=self.where) from error


def bind(
    program: Program,
    bucket: Bucket,
    memory: Memory,
    ops: Sequence[torch._ops.OpOverload],
    device: torch.device,
    where: str,
) -> Bound:
    """Resolve every tensor and argument of `bucket` once, so that a replay only calls.

    `ops` are the program's ops, resolved; `where` names the bucket in errors. Raises MalformedError where an
    instruction does not fit its op.
    """
    tensors = Tensors(program, bucket, memory)
    calls: list[Callable[[], object]] = []
    nodes: list[str] = []
    stream = 0
    for item in (program.instructions[number] for number in bucket.code):
        if item.stream != stream:
            stream = item.stream
            calls.append(functools.partial(memory.space.switch, stream, _priority(bucket, stream)))
            nodes.append(item.node)
        calls.append(_event(item, memory.space) or call(item, ops[item.op], tensors, device))
        nodes.append(item.node)
    if stream:
        calls.append(functools.partial(memory.space.switch, 0, 0))
        nodes.append("the end")
    inputs, outputs = (tuple(tensors[i] for i in group) for group in (bucket.inputs, bucket.outputs))
    return Bound(
        where,
        inputs,
        outputs,
        tuple(calls),
        tuple(nodes),
        tensors.addressed,
    )


def _priority(bucket: Bucket, stream: int) -> int:
    return bucket.priorities[stream] if bucket.priorities and stream else 0


def _event(item: Instruction, space: DeviceSpace) -> Callable[[], object] | None:
    if item.form == Form.RECORD:
        return functools.partial(space.record, item.args[0])
    return functools.partial(space.wait, item.args[0]) if item.form == Form.WAIT else None


class Tensors:
    """The tensors of one bucket by number, each made at its first use."""

    def __init__(self, program: Program, bucket: Bucket, memory: Memory):
        self._program, self._bucket, self._memory = program, bucket, memory
        self._made: dict[int, torch.Tensor] = {}
        self._views: dict[torch.dtype, torch.Tensor] = {}
        self.addressed = 0  # where the last byte of the arena that any of them reaches ends

    def __getitem__(self, number: int) -> torch.Tensor:
        if number not in self._made:
            self._made[number] = self._make(self._bucket.tensors[number])
        return self._made[number]

    def space(self, number: int) -> int:
        return self._bucket.tensors[number].space

    def _make(self, item: Placement) -> torch.Tensor:
        found = self._program.layouts[item.layout]
        kind = dtype(found.dtype)
        base, start = self._base(item, kind)
        made = base.as_strided(found.shape, found.strides, base.storage_offset() + start // kind.itemsize)
        if base is self._views.get(kind) and made.numel():
            reach = 1 + sum((size - 1) * stride for size, stride in zip(found.shape, found.strides))
            self.addressed = max(self.addressed, start + reach * kind.itemsize)
        return made

    def _base(self, item: Placement, kind: torch.dtype) -> tuple[torch.Tensor, int]:
        """A tensor of the dtype `kind` over the memory of `item`, and the bytes from its beginning to the item's."""
        memory, start = self._memory, item.offset
        if item.space == Space.ARENA:
            return self._arena(kind), start
        if item.space in (Space.INPUT, Space.CALLER):
            if item.index not in memory.in_place:
                return self._arena(kind), self._bucket.input_offsets[item.index] + start
            base = memory.in_place[item.index]
        else:
            base = (memory.constants if item.space == Space.CONSTANT else memory.states)[item.index]
        return (base if base.dtype == kind else base.view(kind)), start

    def _arena(self, kind: torch.dtype) -> torch.Tensor:
        if kind not in self._views:
            self._views[kind] = self._memory.space.arena.view(kind)
        return self._views[kind]


def call(
    instruction: Instruction, op: torch._ops.OpOverload, tensors: Tensors, device: torch.device
) -> Callable[[], object]:
    """The instruction as a call without arguments. Raises MalformedError where it does not fit its op."""
    args = [_value(arg, tensors, device) for arg in instruction.args]
    kwargs = {name: _value(arg, tensors, device) for name, arg in instruction.kwargs}
    written = written_names(op._schema)
    _refuse_read_only(instruction, op, tensors, written)
    if instruction.form == Form.COPY:
        targets = [None if number < 0 else tensors[number] for number in instruction.outs]
        return _copying(functools.partial(op, *args, **kwargs), targets)
    if instruction.form == Form.OUT:
        if len(written) != len(instruction.outs) or min(instruction.outs, default=0) < 0:
            raise MalformedError(f"{op} does not take {len(instruction.outs)} out arguments", where=instruction.node)
        kwargs |= {name: tensors[number] for name, number in zip(written, instruction.outs)}
    return functools.partial(op, *args, **kwargs)


def written_names(schema: torch.FunctionSchema) -> list[str]:
    """The arguments that an op of that schema writes into."""
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def _copying(call: Callable[[], object], targets: Sequence[torch.Tensor | None]) -> Callable[[], None]:
    """`call`, with its results copied into `targets`; a result of another shape is an error, never broadcast."""

    def run() -> None:
        results = call()
        for target, result in zip(targets, (results,) if isinstance(results, torch.Tensor) else results, strict=True):
            if target is None:
                continue
            if result.shape != target.shape:
                raise RuntimeError(f"a result has the shape {list(result.shape)}, planned were {list(target.shape)}")
            target.copy_(result)

    return run


def _value(arg: object, tensors: Tensors, device: torch.device) -> object:
    if isinstance(arg, TensorArg):
        return tensors[arg.index]
    if isinstance(arg, tuple):
        return [_value(item, tensors, device) for item in arg]
    if isinstance(arg, DeviceArg):
        return device
    named = _NAMED.get(type(arg))
    return named(arg.name) if named else arg


_NAMED = {DTypeArg: dtype, MemoryFormatArg: memory_format, LayoutArg: layout}


def _refuse_read_only(
    instruction: Instruction, op: torch._ops.OpOverload, tensors: Tensors, written: list[str]
) -> None:
    for arg in written_arguments(instruction, op._schema, written):
        if tensors.space(arg.index) in READ_ONLY:
            what = "a constant" if tensors.space(arg.index) == Space.CONSTANT else "a user input"
            raise MalformedError(f"{op} would write into {what}", where=instruction.node)


def written_arguments(
    instruction: Instruction, schema: torch.FunctionSchema, written: Sequence[str]
) -> Iterator[TensorArg]:
    """The tensors among the arguments of those names."""
    given = dict(zip((a.name for a in schema.arguments), instruction.args)) | dict(instruction.kwargs)
    for name in written:
        values = given.get(name)
        for arg in values if isinstance(values, tuple) else (values,):
            if isinstance(arg, TensorArg):
                yield arg
