"""`lift_routing`: tokens to their experts and back, and each reason to decline."""

import pytest
import torch
from fusing import declines, fires, fuse, half
from hypothesis import given, settings
from hypothesis import strategies as st

import aotair.ops.experts  # noqa: F401 (defines the ops)

RULE, AIR = "lift_routing", torch.ops.air
X, EXPERTS = half(5, 16), torch.tensor([[0, 2], [2, 1], [0, 1], [1, 2], [2, 0]])
ROWS, PLACES, WEIGHTS = half(10, 16), torch.randperm(10).to(torch.int32), half(5, 2, seed=1).abs()


def route(x, experts):
    return tuple(AIR.route_tokens.default(x, experts, 3))


def combine(rows, places, weights):
    return (AIR.combine_tokens.default(rows, places, weights),)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("whole", [torch.int32, torch.int64])
def test_routes_and_sums(dtype, whole):
    ops = fires(RULE, "npu_moe_init_routing_v2", route, X.to(dtype), EXPERTS.to(whole))
    assert "air.route_tokens.default" not in ops
    fires(RULE, "npu_moe_token_unpermute", combine, ROWS.to(dtype), PLACES, WEIGHTS.to(dtype))


def test_experts_that_were_made_wider_are_taken_as_they_are():
    ops = fires(RULE, "npu_moe_init_routing_v2", lambda x, experts: route(x, experts.to(torch.int64)), X, EXPERTS.int())
    assert "aten._to_copy.default" not in ops


def test_weights_of_float32_become_those_of_the_rows():
    fires(RULE, "npu_moe_token_unpermute", combine, ROWS, PLACES, WEIGHTS.float())


@settings(max_examples=15, deadline=None)
@given(
    chosen=st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=2, unique=True), min_size=1, max_size=6),
    whole=st.sampled_from([torch.int32, torch.int64]),
)
def test_any_routing_and_back(chosen, whole):
    """An expert without a token, and all tokens to one, among them."""
    experts = torch.tensor(chosen, dtype=whole)

    def function(x, experts, weights):
        rows, places, ends = AIR.route_tokens.default(x, experts, 3)
        return AIR.combine_tokens.default(rows * 2, places, weights), ends

    assert fuse(RULE, function, half(len(chosen), 4), experts, half(len(chosen), 2).abs())[2] == 2


@pytest.mark.parametrize(
    ("why", "function", "inputs"),
    [
        ("is float64", route, (X.double(), EXPERTS)),
        ("is int16", route, (X, EXPERTS.short())),
        ("there are 20000 experts", lambda x, e: tuple(AIR.route_tokens.default(x, e, 20000)), (X, EXPERTS)),
        ("is float64", combine, (ROWS.double(), PLACES, WEIGHTS)),
        ("is float64", combine, (ROWS, PLACES, WEIGHTS.double())),
        (
            "a token has 600 experts",
            combine,
            (half(600, 2), torch.arange(600, dtype=torch.int32), torch.rand(1, 600)),
        ),
    ],
)
def test_what_the_kernels_do_not_take_stays(why, function, inputs):
    declines(RULE, why, function, *inputs)
