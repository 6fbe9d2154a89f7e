"""`group_attention`: every variant, and each reason to decline."""

import pytest
import torch
from fusing import declines, fuse, half
from torch.nn import functional

aten, npu = torch.ops.aten, torch.ops.npu


QUERY, KEY = half(2, 4, 5, 32), half(2, 2, 8, 32, seed=1)
SEEN = torch.tensor([True, True, False, True] * 2).expand(1, 1, 5, 8)


def attend(query, key, value, mask=None, **options):
    return functional.scaled_dot_product_attention(query, key, value, mask, **options)


def _grouped(query, key, mask, times: int = 2, dim: int = 2):
    spread = key.unsqueeze(dim).expand(*key.shape[:dim], times, *key.shape[dim:])
    whole = spread.reshape(key.shape[0], key.shape[1] * times, *key.shape[2:])
    return (attend(query, whole, whole, mask, scale=0.3) * 1,)


def test_repeated_heads_are_not_copied():
    query, key = QUERY.float(), KEY.float()
    for function in (
        lambda q, k, m: _grouped(q, k, m),
        lambda q, k, m: _grouped(q, k, None),
        lambda q, k, m: _grouped(q, k, m.float() * 2),
    ):
        ops, left, count = fuse("group_attention", function, query, key, SEEN)
        assert count == 1 and not left and "aten.expand.default" not in ops and "aten.clone.default" not in ops


@pytest.mark.parametrize(
    ("why", "function"),
    [
        ("along another dimension", lambda q, k, m: _grouped(q, k, m, dim=1)),
        ("different batches", lambda q, k, m: _grouped(q, k[:1], m)),
    ],
)
def test_what_is_repeated_otherwise_is_left_alone(why, function):
    query, key = QUERY.float(), KEY.float()
    declines("group_attention", why, function, query, key, SEEN)
    assert fuse("group_attention", lambda q, k, m: (attend(q, q, q),), query, key, SEEN)[2] == 0


def test_grouped_attention_is_for_the_cpu():
    from aotair.passes.pipeline import pipeline
    from aotair.recipe.config import CompilerConfig
    from aotair.target.target import Target

    for kind in ("cpu", "cuda", "npu"):
        names = [step.name for step in pipeline(CompilerConfig(), Target(kind))]
        assert ("group_attention" in names) == (kind == "cpu")


def _by_position(causal: bool = False, **options):
    """Every way in which a call may end: with a mask, as causal, with a scale or without."""

    def function(query, key, mask):
        whole = key[:, :, None].expand(2, 2, 2, *key.shape[2:]).reshape(2, 4, *key.shape[2:])
        if causal:
            return (functional.scaled_dot_product_attention(query, whole, whole, is_causal=True, **options) * 1,)
        return (attend(query, whole, whole, mask, **options) * 1,)

    return function


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"causal": True}, {"causal": True, "scale": 2.0}])
def test_every_ending_of_the_call_in_every_dtype(options, dtype):
    ops, left, count = fuse("group_attention", _by_position(**options), QUERY.to(dtype), KEY.to(dtype), SEEN)
    assert count == 1 and not left and "aten.expand.default" not in ops


def test_one_query_and_one_key_are_shared_too():
    query, key = QUERY[:, :, :1].float(), KEY[:, :, :1].float()
    ops, left, count = fuse("group_attention", _by_position(), query, key, SEEN[..., :1, :1])
    assert count == 1 and not left and "aten.expand.default" not in ops


def test_heads_that_do_not_divide_decline():
    """One query head is spread over four of keys and values: none of them is shared."""
    why = "1 query heads for 2 key and 2 value heads"
    declines("group_attention", why, lambda q, k, m: _grouped(q, k, None), QUERY[:, :1].float(), KEY.float(), SEEN)


def test_what_has_no_four_dimensions_declines():
    def function(query, key):
        key = key[:, None].expand(2, 2, 8, 32).reshape(4, 8, 32)
        return (attend(query, key, key) * 1,)

    why = "has not four dimensions with a known number of heads: [4, 5, 32]"
    declines("group_attention", why, function, QUERY[0].float(), KEY[0].float())
