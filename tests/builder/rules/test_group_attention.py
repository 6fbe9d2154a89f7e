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
