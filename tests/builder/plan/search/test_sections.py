"""Time cut into sections: the largest sets that live together, whatever the intervals."""

import random

import pytest
from hypothesis import given, settings
from intervals import intervals, live

from aotair.plan.search.arena import Interval
from aotair.plan.search.sections import Sections, sections


@settings(max_examples=300, deadline=None)
@given(intervals)
def test_sections_are_the_largest_sets_that_live_together(items: list[Interval]):
    parts = sections(items)
    assert max(parts.sums([item.size for item in items]), default=0) == max(live(items))
    members = [set(found) for found in parts.members()]
    assert not any(a <= b for i, a in enumerate(members) for j, b in enumerate(members) if i != j)
    for i, a in enumerate(items):
        for j, b in enumerate(items[:i]):
            meet = a.first <= b.last and b.first <= a.last
            assert meet == any({i, j} <= found for found in members)


def of(*spans: tuple[int, int]) -> Sections:
    return sections([Interval(1, first, last) for first, last in spans])


@pytest.mark.parametrize(
    ("spans", "low", "high", "count"),
    [
        ((), (), (), 0),
        (((3, 3),), (0,), (1,), 1),
        (((0, 1), (2, 3)), (0, 1), (1, 2), 2),
        (((0, 2), (2, 3)), (0, 0), (1, 1), 1),  # they meet at step 2
        (((0, 9), (0, 1), (2, 3)), (0, 0, 1), (2, 1, 2), 2),
        (((0, 9), (1, 2), (4, 5), (7, 7)), (0, 0, 1, 2), (3, 1, 2, 3), 3),
        (((4, 5), (0, 1)), (1, 0), (2, 1), 2),  # whatever their order
        (((0, 5), (0, 5)), (0, 0), (1, 1), 1),
        (((0, 3), (1, 2)), (0, 0), (1, 1), 1),  # one inside of the other
        (((1000, 2000), (-5, 1000)), (0, 0), (1, 1), 1),
    ],
)
def test_a_section_ends_where_something_ends_after_something_has_begun(spans, low, high, count):
    assert of(*spans) == Sections(low, high, count)


def test_sizes_add_up_by_section():
    parts = of((0, 9), (0, 1), (2, 3), (3, 4))
    assert parts.sums([1, 10, 100, 1000]) == [11, 1101]
    assert parts.sums([0, 0, 0, 0]) == [0, 0]
    assert of().sums([]) == []
    with pytest.raises(ValueError, match="shorter"):
        parts.sums([1, 2])


def test_members_come_in_the_order_of_the_intervals():
    assert of((2, 9), (0, 5), (7, 8), (0, 1)).members() == [[1, 3], [0, 1], [0, 2]]
    assert of().members() == []


def test_who_shares_a_step_shares_a_section():
    """Steps may be far apart, and there are never more sections than intervals."""
    chooser = random.Random(1)
    for _ in range(50):
        items = []
        for _ in range(chooser.randint(1, 25)):
            first = chooser.randrange(0, 10**6, 1000)
            items.append(Interval(1, first, first + chooser.choice([0, 999, 1000, 50_000])))
        parts = sections(items)
        assert parts.count <= len(items)
        assert all(0 <= low < high <= parts.count for low, high in zip(parts.low, parts.high))
        for i, a in enumerate(items):
            for j, b in enumerate(items):
                meet = a.first <= b.last and b.first <= a.last
                assert meet == (parts.low[i] < parts.high[j] and parts.low[j] < parts.high[i])
