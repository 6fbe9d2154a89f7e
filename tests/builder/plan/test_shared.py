"""One layout of inputs and outputs for all buckets: kept where it costs nothing, and never more than that."""

import pytest
from cases import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from aotair.builder import plan
from aotair.plan.check import violations
from aotair.plan.interval import Interval
from aotair.plan.search.arena import plan_arena
from aotair.plan.shared import Interface, shared_places


@st.composite
def interfaces(draw) -> list[Interface]:
    """Buckets with the same steps and growing sizes."""
    steps = draw(st.integers(3, 12))
    count = draw(st.integers(2, 12))
    spans = [sorted((draw(st.integers(0, steps)), draw(st.integers(0, steps)))) for _ in range(count)]
    base = [draw(st.integers(0, 40)) for _ in range(count)]
    inputs = tuple(draw(st.lists(st.sampled_from([*range(count), None]), max_size=3)))
    outputs = tuple(draw(st.lists(st.sampled_from([*range(count), None]), max_size=3)))
    found = []
    for factor in draw(st.lists(st.integers(1, 30), min_size=1, max_size=4)):
        items = tuple(Interval(size * factor, *span) for size, span in zip(base, spans))
        found.append(Interface(items, plan_arena(items, 16), inputs, outputs))
    return found


@given(interfaces())
@settings(max_examples=100, deadline=None)
def test_no_bucket_gets_higher_and_every_plan_is_right(buckets):
    plans = shared_places(buckets, 16, 0.1)
    for bucket, found in zip(buckets, plans, strict=True):
        assert found.height <= bucket.plan.height and found.lower_bound == bucket.plan.lower_bound
        assert not violations(bucket.intervals, found, 16)


def bucket(size: int) -> Interface:
    """An input that is gone before most is alive, one that is not, and an output."""
    items = (
        Interval(size, 0, 1),
        Interval(size, 0, 3),
        Interval(20 * size, 1, 2),
        Interval(20 * size, 2, 3),
        Interval(2 * size, 4, 5),
    )
    return Interface(items, plan_arena(items, 16), (0, 1), (4,))


def test_inputs_and_outputs_lie_in_one_place():
    buckets = [bucket(16), bucket(64), bucket(160)]
    plans = shared_places(buckets, 16, 1.0)
    assert len({tuple(found.offsets[i] for i in (0, 1, 4)) for found in plans}) == 1
    assert plans[0].offsets[1] == 0, "what lives longest lies lowest"
    assert [found.height for found in plans] == [item.plan.height for item in buckets]


def test_a_bucket_too_small_for_the_places_keeps_its_own_plan():
    small, large = bucket(16), bucket(16 * 1000)
    plans = shared_places([small, large], 16, 1.0)
    assert plans[0].height == small.plan.height == plans[0].lower_bound
    assert plans[1].offsets[1] == 0


@pytest.mark.long
def test_the_encoders_buckets_share_their_inputs():
    (entry,) = plan(ROOT / "recipes" / "minilm.yaml").entry_points
    assert len({item.input_offsets for item in entry.buckets}) == 1
    assert len({item.tensors[item.outputs[0]].offset for item in entry.buckets}) == 1
    assert all(item.height == item.lower_bound for item in entry.buckets)


# ---- places ----------------------------------------------------------------------------------------------------------


def interface(items: list[Interval], inputs=(), outputs=(), alignment: int = 16) -> Interface:
    return Interface(tuple(items), plan_arena(items, alignment), tuple(inputs), tuple(outputs))


def test_no_bucket_has_no_plan():
    assert shared_places([], 16, 1.0) == []


def test_a_bucket_without_inputs_and_outputs_keeps_what_it_has():
    alone = interface([Interval(16, 0, 1), Interval(32, 1, 2)])
    (found,) = shared_places([alone], 16, 0.1)
    assert found.height == alone.plan.height == alone.plan.lower_bound
    assert not violations(alone.intervals, found, 16)


def test_what_lies_in_the_callers_memory_has_no_place():
    items = [Interval(16, 0, 2), Interval(16, 1, 3)]
    buckets = [interface(items, (None, 0), (None, 1)), interface(items, (None, 0), (None, 1))]
    assert [found.offsets for found in shared_places(buckets, 16, 0.1)] == [(0, 16), (0, 16)]


def test_each_place_has_room_for_the_largest_bucket():
    """And rounded up: sizes of 20 take 32 bytes."""
    small = interface([Interval(4, 0, 3), Interval(4, 0, 2), Interval(64, 1, 3)], (0, 1))
    large = interface([Interval(20, 0, 3), Interval(20, 0, 2), Interval(64, 1, 3)], (0, 1))
    first, second = shared_places([small, large], 16, 0.1)
    assert second.offsets[:2] == (0, 32)
    assert first.offsets[:2] != (0, 32), "which would make the small bucket higher"
    assert first.height == small.plan.height


def test_what_lives_longest_lies_lowest_and_then_what_is_smallest():
    items = [Interval(64, 0, 1), Interval(32, 0, 1), Interval(16, 0, 5), Interval(32, 0, 1)]
    found, _ = shared_places([interface(items, (0, 1, 2, 3))] * 2, 16, 0.1)
    assert found.offsets == (80, 16, 0, 48)


def test_an_input_that_only_one_bucket_copies_has_its_place_there():
    with_it = interface([Interval(16, 0, 2), Interval(16, 0, 1)], (0, 1))
    without = interface([Interval(16, 0, 2), Interval(16, 1, 1)], (0, None))
    plans = shared_places([with_it, without], 16, 0.1)
    assert [found.offsets[0] for found in plans] == [0, 0] and plans[0].offsets[1] == 16


def test_outputs_lie_above_the_inputs():
    items = [Interval(16, 0, 3), Interval(16, 1, 3)]
    plans = shared_places([interface(items, (0,), (1,))] * 2, 16, 0.1)
    assert {found.offsets for found in plans} == {(0, 16)}


def test_an_output_that_is_an_inputs_copy_lies_where_the_input_does():
    items = [Interval(16, 0, 3), Interval(16, 1, 3)]
    plans = shared_places([interface(items, (0,), (1, 0))] * 2, 16, 0.1)
    assert {found.offsets for found in plans} == {(0, 16)}


def test_where_outputs_cost_bytes_the_inputs_alone_are_shared():
    """The small bucket's output may lie where its input was; that of the large one may not."""
    small = interface([Interval(16, 0, 1), Interval(16, 2, 3)], (0,), (1,))
    large = interface([Interval(16, 0, 2), Interval(16, 2, 3)], (0,), (1,))
    first, second = shared_places([small, large], 16, 0.1)
    assert second.offsets == (0, 16) and second.height == 32
    assert first.offsets == (0, 0) and first.height == 16
    swapped = interface([Interval(16, 0, 1), Interval(16, 0, 3), Interval(16, 2, 3)], (0, 1), (2,))
    assert swapped.plan.offsets == (0, 16, 0)
    assert [found.offsets for found in shared_places([swapped], 16, 0.1)] == [(16, 0, 16)], "the inputs' places"


def test_the_bound_is_that_of_the_bucket_and_not_of_what_is_fixed():
    """A plan with fixed offsets has a bound of its own, which says nothing of the bucket."""
    buckets = [bucket(16), bucket(64)]
    for item, found in zip(buckets, shared_places(buckets, 16, 1.0), strict=True):
        assert found.lower_bound == item.plan.lower_bound


def test_the_same_buckets_get_the_same_places():
    buckets = [bucket(16), bucket(64), bucket(160)]
    assert shared_places(buckets, 16, 0.5) == shared_places(list(buckets), 16, 0.5)
