"""The checker beside a comparison of all pairs: random plans, and overlaps planted in them, of which none is missed."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from aotair.plan.check import violations
from aotair.plan.search.arena import Interval, Plan, plan_arena


def random_set(generator: random.Random) -> list[Interval]:
    """Up to 80 intervals, short and long, small and large; some of nothing, some with an alignment of their own."""
    steps, found = generator.randrange(1, 60), []
    for _ in range(generator.randrange(2, 80)):
        first = generator.randrange(steps)
        length = generator.choice([0, 1, 3, generator.randrange(steps)])
        size = generator.choice([0, 8, 64, generator.randrange(1, 5000)])
        found.append(Interval(size, first, first + length, None, generator.choice([1, 1, 1, 128])))
    return found


def overlapping(items: Sequence[Interval], offsets: Sequence[int]) -> set[frozenset[int]]:
    """Every pair that shares a byte at some step, by looking at all pairs."""
    return {
        frozenset((i, j))
        for i, a in enumerate(items)
        for j, b in enumerate(items[:i])
        if a.first <= b.last and b.first <= a.last
        if max(offsets[i], offsets[j]) < min(offsets[i] + a.size, offsets[j] + b.size)
    }


def reported(items: Sequence[Interval], plan: Plan) -> set[frozenset[int]]:
    words = [line.split() for line in violations(items, plan, 1) if line.endswith("overlap")]
    return {frozenset((int(line[1]), int(line[3]))) for line in words}


def planted(items: Sequence[Interval], plan: Plan, generator: random.Random) -> tuple[Plan, frozenset[int]] | None:
    """The plan with one interval moved upon another that lives with it, and these two."""
    meeting = [
        (i, j)
        for i, a in enumerate(items)
        for j, b in enumerate(items)
        if i != j and a.size and b.size and a.first <= b.last and b.first <= a.last
    ]
    if not meeting:
        return None
    i, j = generator.choice(meeting)
    offsets = list(plan.offsets)
    offsets[j] = max(0, offsets[i] + generator.choice([1 - items[j].size, 0, items[i].size - 1]))
    return replace(plan, offsets=tuple(offsets)), frozenset((i, j))


def test_no_planted_overlap_is_missed(pytestconfig: pytest.Config):
    sets = pytestconfig.getoption("graphs") or 200
    generator, made, wanted = random.Random(0), 0, max(20, sets // 10)
    for number in range(sets):
        items = random_set(generator)
        plan = plan_arena(items, 1, 0.01)
        assert violations(items, plan, 1) == [] and not overlapping(items, plan.offsets), f"set {number}"
        broken = planted(items, plan, generator) if made < wanted else None
        if broken:
            made += 1
            assert broken[1] in reported(items, broken[0]), f"set {number}"
            assert reported(items, broken[0]) == overlapping(items, broken[0].offsets), f"set {number}"
    assert made == wanted
    print(f"{sets:,} plans right, {made:,} overlaps planted, 0 missed")
