"""What do the memory plans of two artifacts take, bucket by bucket and step by step?"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from aotair_runtime.format.schema import Bucket, Program
from aotair_runtime.profile.live import live_bytes

from .flow import schema_of
from .graphs import Side, common_buckets


@dataclass(frozen=True)
class Peak:
    """The most live bytes of a bucket's plan, at which step of how many, and what runs there."""

    nbytes: int
    step: int
    op: str
    line: str


@dataclass(frozen=True)
class PlanChange:
    """A bucket whose plan takes other bytes: the plan's height, its lower bound and peak, and the live bytes of the
    arena at each step, in both."""

    bucket: str
    before: int
    after: int
    bound_before: int
    bound_after: int
    peak_before: Peak
    peak_after: Peak
    steps_before: tuple[int, ...]
    steps_after: tuple[int, ...]


def plan_changes(one: Side, other: Side) -> tuple[PlanChange, ...]:
    """The buckets of both whose plans take other bytes, in all or at some step."""
    found = []
    for name, _, mine, _, theirs in common_buckets(one.program, other.program):
        steps = _live(one.program, mine), _live(other.program, theirs)
        if (mine.height, mine.lower_bound, steps[0]) != (theirs.height, theirs.lower_bound, steps[1]):
            peaks = _peak(one, mine, steps[0]), _peak(other, theirs, steps[1])
            found.append(
                PlanChange(
                    name, mine.height, theirs.height, mine.lower_bound, theirs.lower_bound, *peaks, *map(tuple, steps)
                )
            )
    return tuple(found)


@dataclass(frozen=True)
class _Known:
    """An op of which only the schema is known: nothing is called."""

    _schema: torch.FunctionSchema


def _live(program: Program, bucket: Bucket) -> list[int]:
    return live_bytes(program, bucket, [_Known(schema_of(op.schema)) for op in program.ops])


def _peak(side: Side, bucket: Bucket, steps: Sequence[int]) -> Peak:
    if not steps:
        return Peak(0, 0, "", "")
    place = max(range(len(steps)), key=steps.__getitem__)
    number = bucket.code[place]
    item = side.program.instructions[number]
    op = "" if item.is_event else side.program.ops[item.op].name
    return Peak(steps[place], place, op, side.debug.of(number).line or item.node)
