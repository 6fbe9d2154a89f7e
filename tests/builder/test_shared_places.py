"""One layout of inputs and outputs for all buckets: kept where it costs nothing, and never more than that."""

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


def test_the_encoders_buckets_share_their_inputs():
    (entry,) = plan(ROOT / "recipes" / "minilm.yaml").entry_points
    assert len({item.input_offsets for item in entry.buckets}) == 1
    assert len({item.tensors[item.outputs[0]].offset for item in entry.buckets}) == 1
    assert all(item.height == item.lower_bound for item in entry.buckets)
