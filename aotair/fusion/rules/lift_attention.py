"""scaled_dot_product_attention, perhaps with repeated heads or transposed -> npu_fused_infer_attention_score."""

import functools
import itertools
import math

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import Node

from ..matcher import Either, KeywordArg, PatternExpr, call
from ..rule import Fused, Results, Rule
from .npu import HALVES, dtype_text, same, val

_aten, _npu = torch.ops.aten, torch.ops.npu
_WIDEST, _ALIGNED, _GROUPS = 512, 16, 64  # the head's width, what divides it, query heads for each of key and value


def repeated(name: str) -> Either:
    """Heads repeated in a copy, as models do that share them among several queries; the kernel needs no copy."""
    source = KeywordArg(name)
    spread = call(
        _aten.expand.default, call(_aten.unsqueeze.default, source, KeywordArg(f"{name}_dim")), KeywordArg("e")
    )
    copied = call(_aten.clone.default, spread, memory_format=torch.contiguous_format)
    views = [_aten._unsafe_view.default, _aten.view.default]
    return Either(call(views, copied, KeywordArg("v")), call(views, spread, KeywordArg("v")))


def _attention(key: PatternExpr, value: PatternExpr) -> list[PatternExpr]:
    rests = [(), (KeywordArg("mask"),), (None, 0.0, KeywordArg("causal"))]
    kinds = [{}, {"scale": KeywordArg("scale")}]
    grouped = [{}, {"enable_gqa": KeywordArg("grouped")}]
    return [
        call(_aten.scaled_dot_product_attention.default, KeywordArg("query"), key, value, *rest, **scale, **group)
        for rest, scale, group in itertools.product(rests, reversed(kinds), reversed(grouped))
    ]


def _check(
    query: Node,
    key: Node,
    value: Node,
    mask: Node | None = None,
    dim0: int = 1,
    dim1: int = 2,
    key_dim: int = 2,
    value_dim: int = 2,
) -> str | None:
    for node in (query, key, value):
        if val(node).dim() != 4 or val(node).dtype not in HALVES or val(node).dtype != val(query).dtype:
            return f"{node.name} is {dtype_text(node)} {list(val(node).shape)}; four dimensions of a half are needed"
        if not all(isinstance(val(node).shape[axis], int) and val(node).shape[axis] for axis in (1, 3)):
            return f"heads or width of {node.name} are symbolic, or none: {list(val(node).shape)}"
        if not same(val(node).shape[0], val(query).shape[0]):
            return f"{node.name} has other batches than {query.name}: {val(node).shape[0]}, {val(query).shape[0]}"
    if not same(val(key).shape[2], val(value).shape[2]):
        return f"{key.name} and {value.name} have different lengths"
    heads, shared, width = val(query).shape[1], val(key).shape[1], val(query).shape[3]
    if {val(key).shape[3], val(value).shape[3]} != {width}:
        return (
            f"query, key and value have heads of different widths: {width}, {val(key).shape[3]}, {val(value).shape[3]}"
        )
    if width % _ALIGNED or width > _WIDEST:
        return f"the head's width, {width}, is not a multiple of {_ALIGNED} up to {_WIDEST}"
    if val(value).shape[1] != shared or heads % shared or heads // shared > _GROUPS:
        return f"{heads} query heads for {shared} key and {val(value).shape[1]} value heads"
    if {key_dim, value_dim} != {2}:
        return "its keys and values are repeated along another dimension than the heads"
    if {dim0 % 4, dim1 % 4} != {1, 2}:
        return f"its result is transposed by ({dim0}, {dim1}), not (1, 2)"
    return None if mask is None else _mask_refused(mask, query, key)


def _mask_refused(mask: Node, query: Node, key: Node) -> str | None:
    shape = val(mask).shape
    if val(mask).dtype != torch.bool:
        return f"{mask.name} is an additive mask ({dtype_text(mask)}), the kernel takes a boolean one"
    want = val(query).shape[2], val(key).shape[2]
    if len(shape) not in (2, 4) or not all(map(same, shape[-2:], want)):
        return f"{mask.name} has the shape {list(shape)}, not that of the scores {list(want)}"
    if len(shape) == 4 and not (same(shape[1], 1) and (same(shape[0], 1) or same(shape[0], val(query).shape[0]))):
        return f"{mask.name} differs between heads: {list(shape)}"
    return None


def _hidden(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """What the kernel wants: true where nothing is seen, and a row for each batch where there may be one query."""
    if not statically_known_true(query.shape[2] > 1):
        mask = mask.expand(query.shape[0], 1, query.shape[2], key.shape[2])
    return torch.logical_not(mask)


def _replace(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    *,
    transposed: bool,
) -> Results:
    heads, width = query.shape[1], query.shape[3]
    if causal:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    hidden = None if mask is None else _hidden(mask, query, key)
    # A layout that turns the result is for several queries only.
    turns = transposed and statically_known_true(query.shape[2] > 1)
    layout = "BNSD_BSND" if turns else "BNSD"
    result, _ = _npu.npu_fused_infer_attention_score.default(
        query,
        key,
        value,
        atten_mask=hidden,
        num_heads=heads,
        num_key_value_heads=key.shape[1],
        input_layout=layout,
        scale=1 / math.sqrt(width) if scale is None else scale,
    )
    return (result.transpose(1, 2) if transposed and not turns else result,)


def _variants() -> tuple[Fused, ...]:
    turned = functools.partial(_replace, transposed=True)
    straight = functools.partial(_replace, transposed=False)
    dims = KeywordArg("dim0"), KeywordArg("dim1")
    shared = _attention(repeated("key"), repeated("value"))
    plain = _attention(KeywordArg("key"), KeywordArg("value"))
    transposed = [Fused(call(_aten.transpose.int, sdpa, *dims), turned, _check) for sdpa in (*shared, *plain)]
    return (*transposed, *(Fused(sdpa, straight, _check) for sdpa in (*shared, *plain)))


RULE = Rule(
    "lift_attention", "scaled_dot_product_attention -> npu_fused_infer_attention_score", _variants(), lifts=True
)
