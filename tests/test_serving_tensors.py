"""Tensors in the Open Inference Protocol: what was written is read again; what is no tensor of the model is refused."""

from typing import Any

import pytest
import torch
from cases import RECIPES
from hypothesis import given, settings
from hypothesis import strategies as st

from aotair.builder import plan
from aotair.serving.tensors import DATATYPES, metadata, read_inputs, written
from aotair_runtime.errors import ArgumentError
from aotair_runtime.format.schema import EntryPoint, Input

NAMES = {kind: name for name, kind in DATATYPES.items()}


def entry(kind: torch.dtype, value_range: tuple[float, float] | None = None) -> EntryPoint:
    """An entry point with one input `x` of that dtype."""
    one = Input("x", "user", str(kind).removeprefix("torch."), (2, 3), None, value_range)
    return EntryPoint("forward", (), (one,), (), ("tensor",), (), ())


@pytest.mark.parametrize("kind", DATATYPES.values(), ids=str)
def test_what_is_written_is_read_again(kind: torch.dtype):
    torch.manual_seed(0)
    made = (torch.randn(2, 3) * 40).abs().to(kind)
    (stored,) = written({"x": made})
    assert stored["shape"] == [2, 3] and stored["datatype"] == NAMES[kind] and len(stored["data"]) == 6
    assert torch.equal(read_inputs(entry(kind), [stored])["x"], made)
    nested = stored | {"data": made.tolist()}
    assert torch.equal(read_inputs(entry(kind), [nested])["x"], made)


def test_numbers_that_a_dtype_does_not_have_are_refused():
    wrong = {torch.int8: 300, torch.uint8: -1, torch.bool: 2, torch.int32: 1.5, torch.float16: 1e6, torch.int64: 2**70}
    for kind, number in wrong.items():
        asked = {"name": "x", "shape": [2, 3], "datatype": NAMES[kind], "data": [0, 1, 0, 0, 1, number]}
        with pytest.raises(ArgumentError, match=r"no tensor of this shape|this datatype does not have"):
            read_inputs(entry(kind), [asked])


@pytest.mark.parametrize("value", [float("nan"), -0.5, 1.0, float("inf")])
def test_values_beyond_the_recipes_range_are_refused(value: float):
    asked = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [0.0, 0.5, 0.99, 0.0, 0.0, value]}
    with pytest.raises(ArgumentError, match="does not take"):
        read_inputs(entry(torch.float32, (0.0, 1.0)), [asked])


def test_metadata_says_what_varies():
    program = plan(RECIPES["encoder"])
    found = metadata(program.entry_points[0])
    assert found["inputs"][0] == {"name": "ids", "shape": [-1, -1], "datatype": "INT64"}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("x") | anything,
        "shape": st.just([2, 3]) | st.lists(st.integers(-1, 4), max_size=3) | anything,
        "datatype": st.sampled_from([*DATATYPES]) | anything,
        "data": st.lists(st.integers(-5, 300), min_size=6, max_size=6) | anything,
    },
)


@settings(deadline=None, max_examples=500)
@given(asked=st.lists(requests, max_size=2), kind=st.sampled_from([*DATATYPES.values()]))
def test_whatever_is_asked_is_a_tensor_or_one_error(asked: list[dict[str, Any]], kind: torch.dtype):
    try:
        found = read_inputs(entry(kind), asked)
    except ArgumentError:
        return
    assert found["x"].dtype == kind and list(found["x"].shape) == asked[0]["shape"]
