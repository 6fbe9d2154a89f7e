"""The checker of plans: beside a comparison of all pairs, and against planted faults, of which none is missed."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from intervals import intervals

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


@settings(max_examples=400, deadline=None)
@given(intervals, st.randoms(use_true_random=False))
def test_a_planted_overlap_is_found(items: list[Interval], random):
    plan = plan_arena(items, 1)
    pairs = [
        (i, j)
        for i, a in enumerate(items)
        for j, b in enumerate(items)
        if i < j and a.size and b.size and a.first <= b.last and b.first <= a.last
    ]
    if not pairs:
        return
    i, j = random.choice(pairs)
    offsets = list(plan.offsets)
    offsets[j] = max(0, offsets[i] + random.randint(-items[j].size + 1, items[i].size - 1))
    broken = replace(plan, offsets=tuple(offsets), height=plan.height + items[j].size + items[i].size)
    assert f"intervals {i} and {j} overlap" in violations(items, broken, 1) or (
        f"intervals {j} and {i} overlap" in violations(items, broken, 1)
    )


def test_other_faults_are_found():
    items = [Interval(100, 0, 1), Interval(100, 1, 2)]
    assert violations(items, Plan((0, 100), 200, 200, ""), 4) == []
    assert "does not divide" in violations(items, Plan((2, 104), 204, 200, ""), 4)[0]
    assert "above the height" in violations(items, Plan((0, 100), 150, 200, ""), 4)[0]
    assert "offsets for" in violations(items, Plan((0,), 100, 200, ""), 4)[0]
    assert violations(items, Plan((0, -4), 200, 200, ""), 4)


def test_broken_promises_are_found():
    items = [Interval(8, 0, 1, 16), Interval(8, 0, 1, None, 32)]
    assert violations(items, plan_arena(items, 1), 1) == []
    assert "has to lie at 16" in violations(items, Plan((40, 0), 48, 24, ""), 1)[0]
    assert "its own 32" in violations(items, Plan((16, 24), 32, 24, ""), 1)[0]


# ---- each rule, one by one -------------------------------------------------------------------------------------------

TWO = [Interval(8, 0, 1), Interval(8, 1, 2)]


@pytest.mark.parametrize(
    ("items", "offsets", "height", "alignment", "says"),
    [
        (TWO, (0,), 16, 1, ["1 offsets for 2 intervals"]),
        (TWO, (0, 8, 16), 24, 1, ["3 offsets for 2 intervals"]),
        (TWO, (0, -8), 16, 1, ["interval 1 lies at -8, which 1 does not divide"]),
        (TWO, (0, 12), 20, 8, ["interval 1 lies at 12, which 8 does not divide"]),
        (TWO, (0, 8), 15, 1, ["interval 1 ends at 16, above the height 15"]),
        (TWO, (0, 7), 16, 1, ["intervals 0 and 1 overlap"]),
        ([Interval(8, 0, 1, alignment=16)], (8,), 16, 1, ["interval 0 lies at 8, which its own 16 does not divide"]),
        ([Interval(8, 0, 1, fixed=0)], (8,), 16, 1, ["interval 0 lies at 8, and has to lie at 0"]),
    ],
)
def test_each_rule_has_its_words(items, offsets, height, alignment, says):
    assert violations(items, Plan(offsets, height, 0, ""), alignment) == says


def test_all_that_is_wrong_is_said_at_once():
    items = [Interval(8, 0, 1, fixed=16, alignment=16), Interval(8, 0, 1)]
    found = violations(items, Plan((4, 6), 9, 0, ""), 8)
    assert found == [
        "interval 0 lies at 4, which 8 does not divide",
        "interval 0 lies at 4, which its own 16 does not divide",
        "interval 0 lies at 4, and has to lie at 16",
        "interval 0 ends at 12, above the height 9",
        "interval 1 lies at 6, which 8 does not divide",
        "interval 1 ends at 14, above the height 9",
        "intervals 0 and 1 overlap",
    ]


@pytest.mark.parametrize(
    "items",
    [
        [],
        [Interval(0, 0, 9)],
        [Interval(0, 0, 9), Interval(8, 3, 3)],  # nothing lies inside of something
        [Interval(8, 0, 1), Interval(8, 2, 3)],  # one after the other
    ],
)
def test_what_shares_no_byte_may_lie_at_one_place(items):
    assert violations(items, Plan((0,) * len(items), max((i.size for i in items), default=0), 0, ""), 64) == []


def test_an_interval_of_nothing_has_no_end():
    assert violations([Interval(0, 0, 9)], Plan((64,), 0, 0, ""), 64) == []
    assert violations([Interval(0, 0, 9)], Plan((65,), 0, 0, ""), 64) != []


def test_each_pair_of_three_in_one_place_is_named_once():
    items = [Interval(4, 2, 5), Interval(4, 0, 9), Interval(4, 5, 7)]
    found = violations(items, Plan((0, 0, 0), 4, 0, ""), 1)
    assert found == ["intervals 1 and 0 overlap", "intervals 0 and 2 overlap", "intervals 1 and 2 overlap"]


def test_who_dies_at_a_step_still_lives_at_it():
    items = [Interval(4, 0, 3), Interval(4, 3, 3), Interval(4, 4, 4)]
    assert violations(items, Plan((0, 4, 0), 8, 0, ""), 1) == []
    assert violations(items, Plan((0, 0, 0), 8, 0, ""), 1) == ["intervals 0 and 1 overlap"]
