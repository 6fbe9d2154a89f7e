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


def _endings():
    for mask in ("none", "mask", "causal"):
        for scale in ({}, {"scale": 0.3}):
            for shared in ("grouped", "repeated", "alike"):
                for turned in (False, True):
                    yield pytest.param(mask, scale, shared, turned, id=f"{mask} {scale} {shared} {turned}")


@pytest.mark.parametrize(("mask", "scale", "shared", "turned"), list(_endings()))
def test_every_ending_of_the_call_with_heads_shared_and_results_turned(mask, scale, shared, turned):
    def function(query, key, seen):
        options = dict(scale)
        if mask == "causal":
            options["is_causal"] = True
        if shared == "grouped":
            options["enable_gqa"] = True
        elif shared == "repeated":
            key = key[:, :, None].expand(2, 2, 2, 5, 32).reshape(2, 4, 5, 32)
        result = attend(query, key, key, seen if mask == "mask" else None, **options)
        return ((result.transpose(1, 2) if turned else result) * 1,)

    key = QUERY.flip(2).contiguous() if shared == "alike" else KEY[:, :, :5].contiguous()
    fires("lift_attention", "npu_fused_infer_attention_score", function, QUERY, key, SEEN[..., :5])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 1, 16), (2, 4, 1, 16), (1, 2, 3, 512)])
def test_one_head_one_query_and_the_widest_head(shape, dtype):
    query, key = half(*shape).to(dtype), half(*shape, seed=1).to(dtype)
    function = lambda q, k: (attend(q, k, k) * 1,)  # noqa: E731
    fires("lift_attention", "npu_fused_infer_attention_score", function, query, key)


@pytest.mark.parametrize("mask", [torch.tensor([[True, False]] * 3), torch.tensor([True, False]).expand(2, 1, 3, 2)])
def test_masks_of_two_dimensions_and_one_for_each_batch(mask):
    query, key = half(2, 2, 3, 16), half(2, 2, 2, 16, seed=1)
    function = lambda q, k, m: (attend(q, k, k, m) * 1,)  # noqa: E731
    fires("lift_attention", "npu_fused_infer_attention_score", function, query, key, mask)


def _along(dim: int):
    def function(query, key):
        shape = [2, 4, 8, 32]
        whole = key.unsqueeze(dim).expand(*key.shape[:dim], 2, *key.shape[dim:]).reshape(shape)
        return (attend(query, whole, whole) * 1,)

    return function


Q3, WIDE = half(4, 5, 32), half(1, 1, 2, 528)
MANY, ROW = (half(1, 128, 1, 16), half(1, 1, 2, 16)), torch.ones(1, 5).bool()


@pytest.mark.parametrize(
    ("why", "function", "inputs"),
    [
        ("is float16 [4, 5, 32]; four dimensions of a half are needed", lambda q: (attend(q, q, q) * 1,), (Q3,)),
        ("the head's width, 528, is not a multiple of 16 up to 512", lambda q: (attend(q, q, q) * 1,), (WIDE,)),
        ("[1, 5], not that of the scores [5, 5]", lambda q, m: (attend(q, q, q, m) * 1,), (QUERY, ROW)),
        ("128 query heads for 1 key and 1 value heads", lambda q, k: (attend(q, k, k, enable_gqa=True) * 1,), MANY),
        ("heads or width of", lambda q: (attend(q, q, q) * 1,), (half(1, 0, 2, 16),)),
    ],
)
def test_what_the_kernel_does_not_take_declines(why, function, inputs):
    declines("lift_attention", why, function, *inputs)


@pytest.mark.parametrize(
    ("stays", "function", "inputs"),
    [
        ("aten.expand.default", _along(1), (QUERY, KEY)),
        ("aten.transpose.int", lambda q: (attend(q, q, q).transpose(2, 3) * 1,), (QUERY,)),
    ],
)
def test_what_is_repeated_or_turned_otherwise_stays_beside_the_op(stays, function, inputs):
    assert stays in fires("lift_attention", "npu_fused_infer_attention_score", function, *inputs)


def test_keys_and_values_of_different_lengths_are_said_to_be_that():
    from graphs import trace

    from aotair.fusion.rules import lift_attention

    module = trace(lambda q, k, v: (q * 1, k * 1, v * 1), QUERY, KEY, KEY[:, :, :3])
    query, key, value = list(module.graph.nodes)[:3]
    assert lift_attention._check(query, key, value) == f"{key.name} and {value.name} have different lengths"
