"""`lift_gating`: the routers of transformers' models, and each reason to decline."""

import pytest
import torch
from fusing import declines, fires, fuse
from hypothesis import given, settings
from hypothesis import strategies as st

RULE = "lift_gating"
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
BIAS = torch.randn(8, generator=torch.Generator().manual_seed(1)) / 4


def before(x, k=2, dim=-1, *rest):
    return tuple(torch.softmax(x, dim).topk(k, *rest))


def after(x, k=2):
    values, experts = x.topk(k)
    return torch.softmax(values, -1), experts


def hidden(judged, kept, groups, experts):
    best = torch.topk(judged, k=kept, dim=-1, sorted=False)[1]
    mask = torch.zeros_like(judged).scatter(1, best, 1)
    spread = mask.unsqueeze(-1).expand(-1, groups, experts // groups).reshape(-1, experts)
    return ~spread.bool()


def sigmoids(x, bias, k=2, groups=2, kept=1, best=2, scale=2.5, sort=True):
    """The router of DeepSeek-V3 and GLM-4.5."""
    scores = x.sigmoid()
    choice = scores + bias
    judged = choice.view(-1, groups, x.shape[1] // groups).topk(best, dim=-1)[0].sum(dim=-1)
    choice = choice.masked_fill(hidden(judged, kept, groups, x.shape[1]), float("-inf"))
    experts = torch.topk(choice, k, -1, True, sort)[1]
    weights = scores.gather(1, experts)
    weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights if scale is None else weights * scale, experts


def softmaxes(x, k=2, groups=2, kept=1):
    """The router of DeepSeek-V2."""
    scores = x.softmax(dim=-1, dtype=torch.float32)
    judged = scores.view(-1, groups, x.shape[1] // groups).max(dim=-1).values
    scores = scores.masked_fill(hidden(judged, kept, groups, x.shape[1]), 0.0)
    return tuple(torch.topk(scores, k))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_softmaxes_before_and_after(dtype, k):
    ops = fires(RULE, "npu_moe_gating_top_k_softmax", lambda x: before(x, k), X.to(dtype))
    assert "aten._softmax.default" not in ops and "aten.topk.default" not in ops
    fires(RULE, "npu_moe_gating_top_k_softmax_v2", lambda x: after(x, k), X.to(dtype))


@pytest.mark.parametrize("rest", [(), (-1,), (1,), (-1, True), (-1, True, False)])
def test_every_form_of_topk(rest):
    fires(RULE, "npu_moe_gating_top_k_softmax", lambda x: before(x, 2, -1, *rest), X)


@pytest.mark.parametrize(("k", "groups", "kept"), [(2, 2, 1), (4, 2, 2), (1, 1, 1), (4, 2, 1)])
def test_groups(k, groups, kept):
    fires(RULE, "npu_moe_gating_top_k", lambda x, bias: sigmoids(x, bias, k, groups, kept), X, BIAS)
    fires(RULE, "npu_moe_gating_top_k", lambda x: softmaxes(x, k, groups, kept), X)


def test_weights_that_nothing_scales_and_a_bias_of_another_dtype():
    fires(RULE, "npu_moe_gating_top_k", lambda x, bias: sigmoids(x, bias, scale=None), X, BIAS)
    fires(RULE, "npu_moe_gating_top_k", lambda x, bias: sigmoids(x, bias), X, BIAS.half())


def test_where_no_order_is_asked_for_any_is_right():
    def function(x, bias):
        weights, experts = sigmoids(x, bias, k=4, kept=2, sort=False)
        return (torch.zeros_like(x).scatter(1, experts, weights),)

    fires(RULE, "npu_moe_gating_top_k", function, X, BIAS)


@settings(max_examples=8, deadline=None)
@given(
    scores=st.lists(st.lists(st.integers(-2, 2), min_size=8, max_size=8), min_size=1, max_size=4),
    groups=st.sampled_from([1, 2]),
    k=st.integers(1, 4),
)
def test_equal_scores_go_to_the_same_experts(scores, groups, k):
    x = torch.tensor(scores, dtype=torch.float32)
    for function, inputs in (
        (lambda x: before(x, k), (x,)),
        (lambda x: after(x, k), (x,)),
        (lambda x: softmaxes(x, k, groups, 1), (x,)),
        (lambda x, bias: sigmoids(x, bias, k, groups, 1), (x, torch.zeros(8))),
    ):
        assert fuse(RULE, function, *inputs)[2] == 1  # which compares the numbers


@pytest.mark.parametrize(
    ("why", "function", "inputs"),
    [
        ("has 3 dimensions", before, (X[None],)),
        ("its experts are not the last one", lambda x: before(x, 2, 0), (X,)),
        ("its experts are not the last one", lambda x: before(x, 2, -1, 0), (X,)),
        ("is float64", before, (X.double(),)),
        ("0 of 8 experts are chosen", lambda x: before(x, 0), (X,)),
        ("is also used by", lambda x: (*(s := torch.softmax(x, -1)).topk(2), s * 2), (X,)),
        ("4 groups of 2 experts: the kernel takes groups of more than 2", lambda x: softmaxes(x, 2, 4, 2), (X,)),
        ("128 groups of 4 experts", lambda x: softmaxes(x, 2, 128, 2), (torch.randn(3, 512),)),
        ("judged by its 1 best", lambda x, bias: sigmoids(x, bias, best=1), (X, BIAS)),
        ("judged by its 3 best", lambda x, bias: sigmoids(x, bias, best=3), (X, BIAS)),
        ("has the shape [1]", lambda x, bias: sigmoids(x, bias), (X, BIAS[:1])),
        ("has the shape [5, 8]", lambda x, bias: sigmoids(x, bias), (X, X)),
        ("5 experts are chosen of 1 groups of 4", lambda x: softmaxes(x, 5), (X,)),
    ],
)
def test_what_the_kernels_do_not_take_stays(why, function, inputs):
    declines(RULE, why, function, *inputs)
