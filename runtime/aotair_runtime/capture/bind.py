"""A bucket's instructions, bound to fixed addresses: what a device captures and replays."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..devices import GraphSpace, Leading, Packed, Seen
from ..devices.base import Called
from ..devices.host_call import HostCall
from ..devices.int8_rows import Int8Rows
from ..devices.onednn_product import LibraryWeight
from ..devices.prepared import prepared, prepared_into
from ..errors import CaptureError, MalformedError
from ..format.extents import reach
from ..format.packed import READERS, read_packed
from ..format.schema import (
    READ_ONLY,
    Bucket,
    Form,
    HostArg,
    Instruction,
    Placement,
    Program,
    Space,
    WorkspaceArg,
)
from ..format.stream_rules import event
from ..format.torch_names import dtype
from ..format.values import argument_value
from ..format.written import out_arguments, written_arguments, written_by
from ..steps import images, join, products, table
from ..steps.join import Joined, Named
from ..steps.written import Steps


@dataclass(frozen=True)
class Memory:
    """The memory that programs address: the space with the arena, constants and states in the program's order, the
    caller's tensors that are used in place, by their position among the inputs, packed constants by number and op."""

    space: GraphSpace
    constants: Sequence[torch.Tensor]
    states: Sequence[torch.Tensor]
    in_place: Mapping[int, torch.Tensor]
    lists: Mapping[int, list[int]] = field(default_factory=dict)  # by position: the lists that a capture bakes in
    packed: Mapping[tuple[int, str], Packed] = field(default_factory=dict)
    groups: Sequence[str] = ()  # by axis of the mesh: whom collectives meet
    joins: bool = False  # whether small ops may be made in one call, by kernels of their own


@dataclass(frozen=True)
class Bound:
    """One bucket at fixed addresses: its tensors for inputs and outputs, and the calls of a replay in order.

    `names`: of each call the place and the name of its instruction, as the builder's graph has it, for errors;
    `addressed` is where the last byte of the arena that a tensor reaches ends. `updated` are the calls with host
    arguments.
    """

    where: str
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    calls: tuple[Callable[[], object], ...]
    names: tuple[str, ...]
    addressed: int
    updated: tuple[HostCall, ...] = ()

    def run(self) -> None:
        """Make the calls. Raises CaptureError, naming the bucket and the instruction, where one fails."""
        done = 0
        try:
            for call in self.calls:
                call()
                done += 1
        except Exception as error:
            call = self.calls[done]
            name = (call.failing if isinstance(call, Joined) else "") or self.names[done]
            raise CaptureError(f"instruction {name} failed: {error}", where=self.where) from error


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
    calls: list[Named] = []
    updated: list[HostCall] = []
    stream = 0
    for place, item in enumerate(program.instructions[number] for number in bucket.code):
        name = f"{place} ({item.node})"
        if item.stream != stream:
            stream = item.stream
            calls.append(Named(functools.partial(memory.space.switch, stream, _priority(bucket, stream)), name))
        made = _event(item, memory.space) or named(item, ops, tensors, device, memory.lists, memory.groups)
        if _hand_to_last(calls, made.call):
            made = Named(_done_before, name)
        if isinstance(made.call, HostCall):
            updated.append(made.call)
            made = Named(functools.partial(memory.space.grouped, made.call), name)
        calls.append(Named(made.call, name, made.steps))
    for one in calls:
        if isinstance(one.call, Leading):
            one.call.prepare()
    calls = join.join(calls)
    if stream:
        calls.append(Named(functools.partial(memory.space.switch, 0, 0), "the end"))
    inputs, outputs = (tuple(tensors[i] for i in group) for group in (bucket.inputs, bucket.outputs))
    bound, names = tuple(one.call for one in calls), tuple(one.name for one in calls)
    return Bound(where, inputs, outputs, bound, names, tensors.addressed, tuple(updated))


def _hand_to_last(calls: list[Named], made: Callable[[], object]) -> bool:
    """Let the last of the calls do what the one after it would as well; gives whether it can."""
    last = len(calls) - 1
    while last >= 0 and calls[last].call is _done_before:
        last -= 1
    if last < 0:
        return False
    before = calls[last]
    if isinstance(before.call, Leading):
        both = before.call.then(made)
        found = None if both is None else Named(both, before.name)
    else:
        found = images.followed(before, made)
    if found is not None:
        calls[last] = found
    return found is not None


def _done_before() -> None:
    """Stands for a call whose work one before it does."""


def _priority(bucket: Bucket, stream: int) -> int:
    return bucket.priorities[stream] if bucket.priorities and stream else 0


def _event(item: Instruction, space: GraphSpace) -> Named | None:
    if item.form not in (Form.RECORD, Form.WAIT):
        return None
    return Named(functools.partial(space.record if item.form == Form.RECORD else space.wait, event(item)), item.node)


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

    @property
    def are_packed(self) -> bool:
        """Whether any weight of the program is packed on this device."""
        return bool(self._memory.packed)

    @property
    def joins(self) -> bool:
        """Whether small ops are made by kernels of their own."""
        return self._memory.joins and join.is_there()

    def packed(self, instruction: Instruction) -> dict[int, Packed]:
        """The packed weights that an instruction reads, by argument, where the device has packed them."""
        if not self._memory.packed or not (read := read_packed(instruction, self._bucket)):
            return {}
        op = self._program.ops[instruction.op].name  # which has them at these places: a rule of the format
        found = {
            place: self._memory.packed.get((self._bucket.tensors[number].index, op))
            for place, number in zip(READERS[op].places, read, strict=True)
        }
        return {place: one for place, one in found.items() if one is not None}

    def _make(self, item: Placement) -> torch.Tensor:
        found = self._program.layouts[item.layout]
        kind = dtype(found.dtype)
        base, start = self._base(item, kind)
        made = base.as_strided(found.shape, found.strides, base.storage_offset() + start // kind.itemsize)
        if base is self._views.get(kind) and made.numel():
            self.addressed = max(self.addressed, start + reach(found.shape, found.strides) * kind.itemsize)
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
            base = (memory.states if item.space == Space.STATE else memory.constants)[item.index]
        return as_dtype(base, kind), start

    def _arena(self, kind: torch.dtype) -> torch.Tensor:
        if kind not in self._views:
            self._views[kind] = self._memory.space.arena.view(kind)
        return self._views[kind]


def as_dtype(tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """The bytes of a tensor without gaps, from its first on, as numbers of another dtype, in one dimension; the tensor
    itself where it is of that dtype. What is left over at the end is left out. See `can_be`."""
    if tensor.dtype == kind:
        return tensor
    flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    return flat[: flat.numel() // kind.itemsize * kind.itemsize].view(kind)


def can_be(tensor: torch.Tensor, kind: torch.dtype) -> bool:
    """Whether a tensor begins where numbers of another dtype may."""
    return not tensor.storage_offset() * tensor.element_size() % kind.itemsize and not tensor.data_ptr() % kind.itemsize


def bound_call(
    instruction: Instruction,
    ops: Sequence[torch._ops.OpOverload],
    tensors: Tensors,
    device: torch.device,
    lists: Mapping[int, list[int]],
    groups: Sequence[str] = (),
) -> Callable[[], object]:
    """The call of `named`, by the kernel that a replay has."""
    (found,) = join.join([named(instruction, ops, tensors, device, lists, groups)])
    return found.call


def named(
    instruction: Instruction,
    ops: Sequence[torch._ops.OpOverload],
    tensors: Tensors,
    device: torch.device,
    lists: Mapping[int, list[int]],
    groups: Sequence[str] = (),
) -> Named:
    """The instruction as a call without arguments, with `lists` as its host arguments; and what it does as steps, where
    it may be joined with others. Raises MalformedError where it does not fit its op."""
    op = ops[instruction.op]
    args = [argument_value(arg, tensors.__getitem__, device, lists, groups) for arg in instruction.args]
    plain = [(name, arg) for name, arg in instruction.kwargs if not isinstance(arg, (HostArg, WorkspaceArg))]
    kwargs = {name: argument_value(arg, tensors.__getitem__, device, lists, groups) for name, arg in plain}
    given = dict(kwargs)
    written = written_by(op)
    _refuse_read_only(instruction, op, tensors, written)
    weights = tensors.packed(instruction)
    args = _with_seen(args, weights, instruction)
    packed = next((one for one in weights.values() if not isinstance(one, Seen)), None)
    targets: list[torch.Tensor | None] | None = None
    if instruction.form == Form.COPY:
        _refuse_other_numbers(instruction, op)
        targets = [None if number < 0 else tensors[number] for number in instruction.outs]
    if instruction.form == Form.OUT:
        results = [None if number < 0 else tensors[number] for number in instruction.outs]
        kwargs |= out_arguments(op, written, results, instruction.node)
    if isinstance(packed, Int8Rows):
        args = [*args[:1], packed.rows, *args[2:]]  # which other kernels read as it lies
    steps = _steps(packed, op, args, kwargs, targets) if tensors.joins else None
    node = instruction.node
    if steps is not None:
        own = functools.partial(op, *args, **kwargs)
        return Named(own if targets is None else _copying(own, targets), node, steps)
    if targets is not None:
        call = _into(packed, op, args, kwargs, targets, device)
        return Named(call or _copying(_call(packed, op, args, kwargs, instruction), targets), node)
    call = prepared(op, args, kwargs, tensors.are_packed) if device.type == "cpu" else None
    if call is None and len(plain) < len(instruction.kwargs):
        call = _host_call(instruction, ops, args, kwargs, given, lists)
    return Named(call or _call(packed, op, args, kwargs, instruction), node)


def _with_seen(args: list[Any], weights: Mapping[int, Packed], instruction: Instruction) -> list[Any]:
    """The arguments, with packed weights that ops take as tensors in their places. Raises MalformedError where an op
    would see one otherwise than the device has it."""
    made = list(args)
    for place, one in weights.items():
        if isinstance(one, Seen):
            listed = isinstance(args[place], list)
            seen = one.seen(args[place][0] if listed else args[place])
            if seen is None:
                raise MalformedError("its weight is seen in another shape", where=instruction.node)
            made[place] = [seen] if listed else seen
    return made


def _steps(
    packed: Called | None,
    op: torch._ops.OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    targets: Sequence[torch.Tensor | None] | None,
) -> Steps | None:
    """What a call does as steps, which read a weight in oneDNN's blocks as it lies there; None where it is no such."""
    if isinstance(packed, LibraryWeight):
        return products.linear_blocks(packed, op, args, kwargs, targets)
    return table.steps(op, args, kwargs, targets)


def _into(
    packed: Called | None,
    op: torch._ops.OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    targets: Sequence[torch.Tensor | None],
    device: torch.device,
) -> Callable[[], object] | None:
    """The call that writes its only result to its place by itself, where a packed weight or the CPU has one."""
    if len(targets) != 1 or (target := targets[0]) is None:
        return None
    if packed is not None:
        return packed.into(op, args, kwargs, target)
    return prepared_into(op, args, kwargs, target) if device.type == "cpu" else None


def _call(
    packed: Called | None,
    op: torch._ops.OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    instruction: Instruction,
) -> Callable[[], Any]:
    """The call of an op, which may read a packed weight. Raises MalformedError where the arguments do not fit that."""
    if packed is None:
        return functools.partial(op, *args, **kwargs)
    call = packed.call(op, args, kwargs)
    if call is None:
        raise MalformedError(f"the arguments of {op} do not fit its weight", where=instruction.node)
    return call


def _host_call(
    instruction: Instruction,
    ops: Sequence[torch._ops.OpOverload],
    args: list[object],
    kwargs: dict[str, object],
    given: dict[str, object],
    lists: Mapping[int, list[int]],
) -> HostCall:
    """`given` are the keyword arguments but for results, of which the workspace depends."""
    numbers = {position: number for number, position in enumerate(lists)}
    inputs = {name: numbers[arg.input] for name, arg in instruction.kwargs if isinstance(arg, HostArg)}
    measure = None
    for arg in (arg for _, arg in instruction.kwargs if isinstance(arg, WorkspaceArg)):
        if ops[arg.op]._schema.is_mutable:
            raise MalformedError(f"{ops[arg.op]} is no measure of a workspace", where=instruction.node)
        lowest = {name: lists[arg.input] for name, arg in instruction.kwargs if isinstance(arg, HostArg)}
        measure = functools.partial(ops[arg.op], *args, **given, **lowest)
    made = HostCall(instruction.node, ops[instruction.op], args, kwargs, inputs, measure)
    made.set(list(lists.values()))
    return made


def _copying(
    call: Callable[[], torch.Tensor | Sequence[torch.Tensor]], targets: Sequence[torch.Tensor | None]
) -> Callable[[], None]:
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


def _refuse_other_numbers(instruction: Instruction, op: torch._ops.OpOverload) -> None:
    """Raises MalformedError where there is not a place for each result, or none; a list has any number of them."""
    returns = op._schema.returns
    if all(str(one.type) == "Tensor" for one in returns) and len(instruction.outs) != len(returns):
        what = f"{op} gives {len(returns)} results, and {len(instruction.outs)} have a place"
        raise MalformedError(what, where=instruction.node)


def _refuse_read_only(
    instruction: Instruction, op: torch._ops.OpOverload, tensors: Tensors, written: Sequence[str]
) -> None:
    for arg in written_arguments(instruction, op._schema, written):
        if tensors.space(arg.index) in READ_ONLY:
            what = "a user input" if tensors.space(arg.index) == Space.INPUT else "a constant"
            raise MalformedError(f"{op} would write into {what}", where=instruction.node)
