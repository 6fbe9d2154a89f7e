"""Which calls of a bucket touch the same memory, one of them writing, with nothing that puts them in order?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aotair_runtime.format.packed import tensor_numbers
from aotair_runtime.format.schema import Bucket, Form, Instruction, Program, Space
from aotair_runtime.format.stream_rules import event
from aotair_runtime.format.written import written_arguments, written_names

from ..diff.flow import Extent, Place, schema_of


@dataclass(frozen=True)
class Race:
    """Two calls on two streams: by what is issued the one comes `first`, but the device may begin `second` before it is
    over. Each is the number of an instruction of the program."""

    first: int
    second: int


@dataclass(frozen=True)
class _Touch:
    """Memory that a call reads, or writes."""

    place: Place
    extent: Extent
    stop: int
    writes: bool

    def meets(self, other: "_Touch") -> bool:
        if self.place != other.place or not (self.writes or other.writes):
            return False
        low, high = max(self.extent.start, other.extent.start), min(self.stop, other.stop)
        if low >= high:
            return False
        unit = math.gcd(self.extent.unit, other.extent.unit, low, high)
        return bool((self.extent.mask(unit, low, high - low) & other.extent.mask(unit, low, high - low)).any())


@dataclass(frozen=True)
class _Call:
    number: int
    stream: int
    place: int  # among the calls of its stream, from 1
    knows: Sequence[int]  # by stream: how many calls are over before it begins
    touches: tuple[_Touch, ...]


def races(program: Program, bucket: Bucket) -> list[Race]:
    """Every such pair; the calls of one stream are in order."""
    calls = list(_calls(program, bucket))
    found = []
    for later, second in enumerate(calls):
        for first in calls[:later]:
            is_over = first.stream == second.stream or first.place <= second.knows[first.stream]
            if not is_over and any(a.meets(b) for a in first.touches for b in second.touches):
                found.append(Race(first.number, second.number))
    return found


def writes_over_what_it_reads(program: Program, bucket: Bucket, item: Instruction) -> bool:
    """Whether a result lies where an argument does, and is another tensor."""
    touches = list(_touches(program, bucket, item))
    return any(one.writes and not other.writes and one.meets(other) for one in touches for other in touches)


def _calls(program: Program, bucket: Bucket) -> Iterator[_Call]:
    """The calls, each with what is over before it: the clock of its stream."""
    items = [(number, program.instructions[number]) for number in bucket.code]
    streams = 1 + max((item.stream for _, item in items), default=0)
    if streams == 1:
        return
    clocks = [[0] * streams for _ in range(streams)]
    recorded: dict[int, list[int]] = {}
    for number, item in items:
        clock = clocks[item.stream]
        if item.form == Form.RECORD:
            recorded[event(item)] = list(clock)
        elif item.form == Form.WAIT:
            clocks[item.stream] = [max(pair) for pair in zip(clock, recorded.get(event(item), clock))]
        else:
            before = list(clock)
            clock[item.stream] += 1
            yield _Call(number, item.stream, clock[item.stream], before, tuple(_touches(program, bucket, item)))


def _touches(program: Program, bucket: Bucket, item: Instruction) -> Iterator[_Touch]:
    schema = schema_of(program.ops[item.op].schema)
    written = {arg.index for arg in written_arguments(item, schema, written_names(schema))}
    written |= {number for number in item.outs if number >= 0}
    values = (*item.args, *(value for _, value in item.kwargs))
    for number in dict.fromkeys((*tensor_numbers(values), *written)):
        place, start = _memory(bucket, number)
        if place[0] not in (Space.CONSTANT, Space.PACKED):
            extent = Extent.of(program.layouts[bucket.tensors[number].layout], start)
            yield _Touch(place, extent, extent.stop, number in written)


def _memory(bucket: Bucket, number: int) -> tuple[Place, int]:
    """Where a tensor lies: inputs that are copied lie in the arena."""
    item = bucket.tensors[number]
    if item.space in (Space.INPUT, Space.CALLER) and bucket.input_offsets[item.index] >= 0:
        return (int(Space.ARENA), 0), bucket.input_offsets[item.index] + item.offset
    return (int(item.space), 0 if item.space == Space.ARENA else item.index), item.offset
