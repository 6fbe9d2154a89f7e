"""Golden tensors of what a call changes: stored as what is less, read as they were, refused where they cannot be."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aotair_runtime.errors import MalformedError
from aotair_runtime.weights.golden import _slack, changes, take_changed


@given(
    st.integers(0, 200),
    st.lists(st.integers(0, 199), max_size=60),
    st.sampled_from([torch.float32, torch.float16, torch.int64, torch.bool, torch.complex128]),
)
def test_what_changed_comes_back(count: int, places: list[int], dtype: torch.dtype):
    before = torch.zeros(count, dtype=dtype)
    after = before.clone()
    for place in places:
        if place < count:
            after[place] = float("nan") if dtype.is_floating_point and place % 3 == 0 else 1
    stored = changes("x", before, after)
    assert sum(tensor.nbytes for tensor in stored.values()) <= after.nbytes
    got = take_changed(stored, "x", before)
    assert torch.equal(got.view(torch.uint8), after.view(torch.uint8)) and not before.any()


def test_a_few_rows_of_a_cache_are_stored_as_such():
    before = torch.randn(64, 8, 4).transpose(0, 1).contiguous()
    after = before.clone()
    after[3, 5] += 1
    stored = changes("x", before, after)
    assert set(stored) == {"x.at", "x.is"} and stored["x.is"].numel() == 4
    assert torch.equal(take_changed(stored, "x", before), after)


@pytest.mark.parametrize(
    "at, values",
    [
        (torch.tensor([4]), torch.ones(1)),
        (torch.tensor([-1]), torch.ones(1)),
        (torch.tensor([0, 1]), torch.ones(1)),
        (torch.tensor([[0]]), torch.ones(1, 1)),
        (torch.tensor([0], dtype=torch.int32), torch.ones(1)),
        (torch.tensor([0]), torch.ones(1, dtype=torch.float64)),
    ],
)
def test_places_that_there_are_not(at: torch.Tensor, values: torch.Tensor):
    with pytest.raises(MalformedError, match="changed at places"):
        take_changed({"x.at": at, "x.is": values}, "x", torch.zeros(4))


def test_one_half_is_not_enough():
    with pytest.raises(MalformedError, match=r"'x\.is' is missing"):
        take_changed({"x.at": torch.tensor([0])}, "x", torch.zeros(4))


@pytest.mark.parametrize(
    "slack",
    [torch.tensor(-1.0).double(), torch.tensor(float("inf")).double(), torch.tensor(1.0), torch.ones(1).double()],
)
def test_a_slack_that_is_no_number_is_refused(slack: torch.Tensor):
    assert _slack({"x.slack": torch.tensor(0.5, dtype=torch.float64)}, "x") == 0.5 and _slack({}, "x") == 0.0
    with pytest.raises(MalformedError, match=r"'x\.slack' is no number"):
        _slack({"x.slack": slack}, "x")
