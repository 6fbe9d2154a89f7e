"""`lift_attention`: every variant, and each reason to decline."""

import near
import pytest
import torch
from fusing import declines, fires, half
from torch.nn import functional

aten, npu = torch.ops.aten, torch.ops.npu


QUERY, KEY = half(2, 4, 5, 32), half(2, 2, 8, 32, seed=1)
SEEN = torch.tensor([True, True, False, True] * 2).expand(1, 1, 5, 8)


def attend(query, key, value, mask=None, **options):
    return functional.scaled_dot_product_attention(query, key, value, mask, **options)


def _shared(query, key, mask):
    key = key[:, :, None].expand(2, 2, 2, 8, 32).reshape(2, 4, 8, 32)
    return (attend(query, key, key, mask, scale=0.2).transpose(1, 2).reshape(2, 5, -1),)


@pytest.mark.parametrize(
    "function",
    [
        _shared,
        lambda q, k, m: (attend(q, k, k, m, enable_gqa=True),),
        lambda q, k, m: (attend(q, k, k, enable_gqa=True, scale=0.1).transpose(1, 2) * 1,),
        lambda q, k, m: (attend(q, q, q, is_causal=True),),
    ],
)
def test_attention(function):
    ops = fires("lift_attention", "npu_fused_infer_attention_score", function, QUERY, KEY, SEEN)
    assert "aten.expand.default" not in ops and "aten.transpose.int" not in ops, "heads are not repeated"


@pytest.mark.parametrize(
    ("why", "function", "inputs"),
    [
        ("is float32", lambda q, k, m: (attend(q, k, k, enable_gqa=True),), (QUERY.float(), KEY.float(), SEEN)),
        ("additive mask", lambda q, k, m: (attend(q, k, k, m, enable_gqa=True),), (QUERY, KEY, SEEN.half())),
        ("differs between heads", lambda q, k, m: (attend(q, q, q, m),), (QUERY, KEY, torch.ones(2, 4, 5, 5).bool())),
        ("has other batches", lambda q, k, m: (attend(q, k[:1], k[:1], enable_gqa=True),), (QUERY, KEY, SEEN)),
        ("heads of different widths", lambda q, k, m: (attend(q, q, q[..., :16]),), (QUERY, KEY, SEEN)),
        (
            "is not a multiple of 16",
            lambda q, k, m: (attend(q, k, k, enable_gqa=True),),
            (QUERY[..., :24].contiguous(), KEY[..., :24].contiguous(), SEEN),
        ),
    ],
)
def test_attention_declines(why, function, inputs):
    declines("lift_attention", why, function, *inputs)


@pytest.mark.parametrize(("queries", "layout"), [(1, "BNSD"), (5, "BNSD_BSND")])
def test_one_query_has_a_layout_and_a_mask_of_its_own(queries, layout):
    """The layout that turns the result is for several queries; one query has a row of the mask for each batch."""
    query, seen = QUERY[:, :, :queries].contiguous(), SEEN[:, :, :queries]
    function = lambda q, k, m: (attend(q, k, k, m, enable_gqa=True).transpose(1, 2) * 1,)  # noqa: E731
    _, after, edits = near.fused(function, (query, KEY, seen), ("lift_attention",))
    assert edits["lift_attention"].count == 1 and near.difference(function, (query, KEY, seen), after) is None
    (node,) = after.graph.find_nodes(op="call_function", target=npu.npu_fused_infer_attention_score.default)
    assert node.kwargs["input_layout"] == layout
    assert node.kwargs["atten_mask"].meta["val"].shape[0] == (2 if queries == 1 else 1)
