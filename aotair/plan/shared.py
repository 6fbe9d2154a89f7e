"""One place for each input and output in all buckets of an entry point, where that costs no bucket a byte."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .interval import Interval
from .search.arena import Plan, plan_arena


@dataclass(frozen=True)
class Interface:
    """The intervals of one bucket, its plan, and which interval each input's copy and each output is, if any."""

    intervals: tuple[Interval, ...]
    plan: Plan
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]


def shared_places(buckets: Sequence[Interface], alignment: int, effort: float) -> list[Plan]:
    """A plan for each bucket in which its inputs, and its outputs too, lie at the same offsets as in the others.

    They lie at the bottom, each with room for the largest bucket's: first what lives longest, because that is still
    there when most is alive, and would split the room for the rest if it lay higher up. A bucket whose plan would get
    higher keeps the places that can be kept: the inputs' alone, or none.
    """
    inputs = _places(buckets, [bucket.inputs for bucket in buckets], 0, alignment)
    end = max((offset + size for offset, size in inputs.values()), default=0)
    outputs = _places(buckets, [bucket.outputs for bucket in buckets], end, alignment)
    return [_plan(bucket, inputs, outputs, alignment, effort) for bucket in buckets]


def _places(
    buckets: Sequence[Interface], groups: Sequence[Sequence[int | None]], start: int, alignment: int
) -> dict[int, tuple[int, int]]:
    """The offset and room of each member of the group, by its position."""
    members: dict[int, list[Interval]] = {}
    for bucket, group in zip(buckets, groups, strict=True):
        for position, number in enumerate(group):
            if number is not None:
                members.setdefault(position, []).append(bucket.intervals[number])
    rooms = {position: max(_rounded(item.size, alignment) for item in items) for position, items in members.items()}
    lives = {position: max(item.last - item.first for item in items) for position, items in members.items()}
    found = {}
    for position in sorted(rooms, key=lambda position: (-lives[position], rooms[position], position)):
        found[position] = (start, rooms[position])
        start += rooms[position]
    return found


def _plan(
    bucket: Interface,
    inputs: Mapping[int, tuple[int, int]],
    outputs: Mapping[int, tuple[int, int]],
    alignment: int,
    effort: float,
) -> Plan:
    for fixed in _choices(bucket, inputs, outputs):
        intervals = [replace(item, fixed=fixed.get(i)) for i, item in enumerate(bucket.intervals)]
        plan = plan_arena(intervals, alignment, effort)
        if plan.height <= bucket.plan.height:
            return replace(plan, lower_bound=bucket.plan.lower_bound)
    return bucket.plan


def _choices(
    bucket: Interface, inputs: Mapping[int, tuple[int, int]], outputs: Mapping[int, tuple[int, int]]
) -> Iterator[dict[int, int]]:
    """The offsets by interval, with the most shared first."""
    first = {interval: inputs[i][0] for i, interval in enumerate(bucket.inputs) if interval is not None}
    both = {interval: outputs[i][0] for i, interval in enumerate(bucket.outputs) if interval is not None} | first
    yield both
    if first and first != both:
        yield first


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
