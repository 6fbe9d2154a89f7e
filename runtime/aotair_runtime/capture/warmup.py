"""What runs once before a bucket's first capture: its calls, on legal inputs, without a trace in what outlives a call.

A kernel's first launch may load code and take workspaces, which a capture forbids. States and the caller's tensors
must not change by it: an instruction that writes there works on a copy, which lives for that call.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..errors import CaptureError
from ..format.schema import Bucket, EntryPoint, Instruction, Program, Space
from ..format.written import written_arguments, written_by
from .bind import Bound, Memory, Tensors, bound_call


def fill_legal(entry: EntryPoint, bound: Bound, in_place: Sequence[int]) -> None:
    """Put a legal value into every buffer that inputs are copied to: an index out of range would end the device."""
    for position, (spec, buffer) in enumerate(zip(entry.inputs, bound.inputs)):
        if position not in in_place:
            buffer.fill_(spec.value_range[0] if spec.value_range else 0)


def warm_up(
    program: Program,
    bucket: Bucket,
    memory: Memory,
    ops: Sequence[torch._ops.OpOverload],
    device: torch.device,
    where: str,
) -> None:
    """Run the instructions of `bucket` once. Raises CaptureError, naming the instruction, where one fails."""
    tensors = Tensors(program, bucket, memory)
    for number, item in enumerate(program.instructions[n] for n in bucket.code):
        if item.is_event:
            continue
        op = ops[item.op]
        roots = _lasting(item, op, bucket)
        try:
            apart = Tensors(program, bucket, _copied(memory, roots)) if roots else tensors
            bound_call(item, ops, apart, device, memory.lists, memory.groups)()
        except Exception as error:
            raise CaptureError(f"instruction {number} ({item.node}) failed: {error}", where=where) from error


def _lasting(item: Instruction, op: torch._ops.OpOverload, bucket: Bucket) -> set[tuple[int, int]]:
    """The states and caller's tensors that the instruction writes, as (space, index)."""
    numbers = [n for n in item.outs if n >= 0]
    numbers += [arg.index for arg in written_arguments(item, op._schema, written_by(op))]
    places = [bucket.tensors[number] for number in numbers]
    return {(place.space, place.index) for place in places if place.space in (Space.STATE, Space.CALLER)}


def _copied(memory: Memory, roots: set[tuple[int, int]]) -> Memory:
    states, in_place = list(memory.states), dict(memory.in_place)
    for space, index in roots:
        kept = states if space == Space.STATE else in_place
        kept[index] = kept[index].clone(memory_format=torch.preserve_format)
    return replace(memory, states=states, in_place=in_place)
