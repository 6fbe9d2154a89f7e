"""A bucket's instructions, bound to fixed addresses: what a device captures and replays."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from .check import dtype, layout, memory_format
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
    """The memory that programs address: the arena (uint8), constants and states in the program's order, and the
    caller's mutated inputs by their position among the inputs."""

    arena: torch.Tensor
    constants: Sequence[torch.Tensor]
    states: Sequence[torch.Tensor]
    caller: Mapping[int, torch.Tensor]


@dataclass(frozen=True)
class Bound:
    """One bucket at fixed addresses: its tensors for inputs and outputs, and the calls of a replay in order.

    `nodes` names each call as the builder's graph did, for errors.
    """

    where: str
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    calls: tuple[Callable[[], object], ...]
    nodes: tuple[str, ...]

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
    tensors = _Tensors(program, bucket, memory)
    instructions = [program.instructions[number] for number in bucket.code]
    return Bound(
        where,
        tuple(tensors[i] for i in bucket.inputs),
        tuple(tensors[i] for i in bucket.outputs),
        tuple(_call(instruction, ops[instruction.op], tensors, device) for instruction in instructions),
        tuple(instruction.node for instruction in instructions),
    )


class _Tensors:
    """The tensors of one bucket by number, each made at its first use."""

    def __init__(self, program: Program, bucket: Bucket, memory: Memory):
        self._program, self._bucket, self._memory = program, bucket, memory
        self._made: dict[int, torch.Tensor] = {}
        self._views: dict[torch.dtype, torch.Tensor] = {}

    def __getitem__(self, number: int) -> torch.Tensor:
        if number not in self._made:
            self._made[number] = self._make(self._bucket.tensors[number])
        return self._made[number]

    def space(self, number: int) -> int:
        return self._bucket.tensors[number].space

    def _make(self, item: Placement) -> torch.Tensor:
        found = self._program.layouts[item.layout]
        kind = dtype(found.dtype)
        base = self._base(item, kind)
        offset = base.storage_offset() + item.offset // kind.itemsize
        return base.as_strided(found.shape, found.strides, offset)

    def _base(self, item: Placement, kind: torch.dtype) -> torch.Tensor:
        memory = self._memory
        if item.space == Space.ARENA:
            if kind not in self._views:
                self._views[kind] = memory.arena.view(kind)
            return self._views[kind]
        if item.space == Space.CALLER:
            base = memory.caller[item.index]
        else:
            base = (memory.constants if item.space == Space.CONSTANT else memory.states)[item.index]
        return base if base.dtype == kind else base.view(kind)


def _call(
    instruction: Instruction, op: torch._ops.OpOverload, tensors: _Tensors, device: torch.device
) -> Callable[[], object]:
    args = [_value(arg, tensors, device) for arg in instruction.args]
    kwargs = {name: _value(arg, tensors, device) for name, arg in instruction.kwargs}
    written = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if instruction.form == Form.COPY:
        targets = [None if number < 0 else tensors[number] for number in instruction.outs]
        return _copying(functools.partial(op, *args, **kwargs), targets)
    if instruction.form == Form.OUT:
        if len(written) != len(instruction.outs) or min(instruction.outs, default=0) < 0:
            raise MalformedError(f"{op} does not take {len(instruction.outs)} out arguments", where=instruction.node)
        kwargs |= {name: tensors[number] for name, number in zip(written, instruction.outs)}
    else:
        _refuse_constants(instruction, op, tensors, written)
    return functools.partial(op, *args, **kwargs)


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


def _value(arg: object, tensors: _Tensors, device: torch.device) -> object:
    if isinstance(arg, TensorArg):
        return tensors[arg.index]
    if isinstance(arg, tuple):
        return [_value(item, tensors, device) for item in arg]
    if isinstance(arg, DeviceArg):
        return device
    named = _NAMED.get(type(arg))
    return named(arg.name) if named else arg


_NAMED = {DTypeArg: dtype, MemoryFormatArg: memory_format, LayoutArg: layout}


def _refuse_constants(
    instruction: Instruction, op: torch._ops.OpOverload, tensors: _Tensors, written: list[str]
) -> None:
    given = dict(zip((a.name for a in op._schema.arguments), instruction.args)) | dict(instruction.kwargs)
    for name in written:
        values = given.get(name)
        for arg in values if isinstance(values, tuple) else (values,):
            if isinstance(arg, TensorArg) and tensors.space(arg.index) == Space.CONSTANT:
                raise MalformedError(f"{op} would write into a constant", where=instruction.node)
