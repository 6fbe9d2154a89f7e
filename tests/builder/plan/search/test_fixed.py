"""Fixed intervals that cannot lie where they must are refused, and no others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from intervals import overlap

from aotair.plan.search.arena import Interval, plan_arena
from aotair.plan.search.fixed import refuse_impossible


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 5), st.integers(0, 400)), max_size=12))
def test_fixed_intervals_that_overlap_are_refused(rows: list[tuple[int, int, int, int]]):
    items = [Interval(size, first, first + length, offset) for size, first, length, offset in rows]
    pairs = {(i, j) for i in range(len(items)) for j in range(len(items)) if i != j and overlap(items, i, j)}
    if not pairs:
        assert plan_arena(items, 1).offsets == tuple(item.fixed for item in items)
        return
    with pytest.raises(ValueError, match="are fixed where they overlap") as caught:
        plan_arena(items, 1)
    words = str(caught.value).split()
    assert (int(words[1]), int(words[3])) in pairs


@pytest.mark.parametrize(
    ("item", "alignment"), [(Interval(8, 0, 1, 8), 16), (Interval(8, 0, 1, 8, 16), 1), (Interval(8, 0, 1, -8), 1)]
)
def test_a_fixed_offset_that_is_not_aligned_is_refused(item: Interval, alignment: int):
    with pytest.raises(ValueError, match="does not divide"):
        plan_arena([item], alignment)


# ---- alone -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items",
    [
        [],
        [Interval(8, 0, 1), Interval(8, 0, 1)],  # nothing is fixed
        [Interval(8, 0, 1, 0), Interval(8, 0, 1, 8)],  # they touch
        [Interval(8, 0, 1, 8), Interval(8, 0, 1, 0)],
        [Interval(8, 0, 1, 0), Interval(8, 2, 3, 0)],  # one after the other
        [Interval(0, 0, 9, 0), Interval(8, 0, 9, 0), Interval(0, 0, 9, 0)],  # nothing shares no byte
        [Interval(8, 0, 9, 0), Interval(8, 0, 9)],  # what is free goes elsewhere
        [Interval(8, 0, 9, 64, 64)],
    ],
)
def test_what_can_lie_so_is_let_through(items):
    refuse_impossible(items, 8)


@pytest.mark.parametrize(
    ("item", "alignment", "says"),
    [
        (Interval(8, 0, 1, 8), 16, "interval 1 is fixed at 8, which 16 does not divide"),
        (Interval(8, 0, 1, 8, 16), 1, "interval 1 is fixed at 8, which 16 does not divide"),
        (Interval(8, 0, 1, 16, 4), 32, "interval 1 is fixed at 16, which 32 does not divide"),
        (Interval(8, 0, 1, -16), 16, "interval 1 is fixed at -16, which 16 does not divide"),
        (Interval(0, 0, 1, 3), 2, "interval 1 is fixed at 3, which 2 does not divide"),  # be it of nothing
    ],
)
def test_an_offset_is_told_by_its_interval_and_what_does_not_divide_it(item, alignment, says):
    with pytest.raises(ValueError, match=f"^{says}$"):
        refuse_impossible([Interval(8, 0, 1), item], alignment)


@pytest.mark.parametrize(
    ("a", "b", "first"),
    [
        (Interval(8, 0, 5, 0), Interval(8, 5, 9, 0), "0 and 1"),  # at one step
        (Interval(8, 0, 5, 0), Interval(8, 1, 2, 7), "0 and 1"),  # by one byte
        (Interval(8, 0, 5, 8), Interval(9, 1, 2, 0), "0 and 1"),  # from below
        (Interval(8, 3, 5, 0), Interval(64, 0, 9, 0), "1 and 0"),  # whoever lives first is named first
    ],
)
def test_two_that_share_a_byte_are_both_named(a, b, first):
    with pytest.raises(ValueError, match=f"^intervals {first} are fixed where they overlap: Interval") as caught:
        refuse_impossible([a, b], 1)
    assert str(a) in str(caught.value) and str(b) in str(caught.value)


def test_who_has_died_is_in_nobodys_way():
    """Of several at one offset the right one is taken out of the living."""
    chain = [Interval(8, step, step, 0) for step in range(5)] + [Interval(8, 0, 4, 8)]
    refuse_impossible(chain, 1)
    with pytest.raises(ValueError, match="intervals 4 and 6"):
        refuse_impossible([*chain, Interval(8, 4, 6, 7)][:5] + [Interval(8, 0, 3, 8), Interval(8, 4, 6, 7)], 1)


def test_one_that_is_large_reaches_over_several():
    items = [Interval(8, 0, 9, 0), Interval(8, 0, 9, 16), Interval(8, 0, 9, 32), Interval(12, 1, 2, 24)]
    with pytest.raises(ValueError, match="intervals 2 and 3"):
        refuse_impossible(items, 4)
    refuse_impossible([*items[:3], Interval(8, 1, 2, 24)], 4)
