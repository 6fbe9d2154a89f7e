"""The planner against its independent checker, and the checker against planted faults."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from aotair.plan.arena import Interval, Plan, largest_live_sum, plan_arena
from aotair.plan.check import violations

intervals = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 40), st.integers(0, 15)).map(
        lambda t: Interval(t[0], t[1], t[1] + t[2])
    ),
    max_size=60,
)
alignments = st.sampled_from([1, 64, 512])


@settings(max_examples=400, deadline=None)
@given(intervals, alignments)
def test_a_plan_is_right_and_not_below_the_bound(items: list[Interval], alignment: int):
    plan = plan_arena(items, alignment)
    assert violations(items, plan, alignment) == []
    assert plan.height >= plan.lower_bound
    assert plan.height <= sum(-(-item.size // alignment) * alignment for item in items)
    assert plan == plan_arena(list(items), alignment)


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


def test_lifetimes_include_both_ends():
    touching = [Interval(10, 0, 3), Interval(10, 3, 5)]
    apart = [Interval(10, 0, 3), Interval(10, 4, 5)]
    assert plan_arena(touching, 1).height == 20
    assert plan_arena(apart, 1).height == 10
    assert largest_live_sum(touching, [10, 10]) == 20


def test_nothing_needs_nothing():
    assert plan_arena([], 64) == Plan((), 0, 0, "greedy by size")
    assert plan_arena([Interval(0, 0, 9)], 64).height == 0
