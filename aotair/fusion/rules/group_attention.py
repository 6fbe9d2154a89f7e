"""scaled_dot_product_attention over heads repeated in a copy -> the same with enable_gqa, which needs no copy.

On the CPU only: its kernel shares heads in every form, with equal numbers. Others fall back to slow kernels for some.
"""

import itertools

import torch
from torch.fx.node import Node

from ..matcher import KeywordArg, call
from ..rule import Fused, Results, Rule
from .lift_attention import repeated
from .npu import same, val

_aten = torch.ops.aten


def _check(query: Node, key: Node, value: Node, key_dim: int = 2, value_dim: int = 2) -> str | None:
    for node in (query, key, value):
        if val(node).dim() != 4 or not isinstance(val(node).shape[1], int):
            return f"{node.name} has not four dimensions with a known number of heads: {list(val(node).shape)}"
    heads, shared = val(query).shape[1], val(key).shape[1]
    if val(value).shape[1] != shared or not shared or heads % shared:
        return f"{heads} query heads for {shared} key and {val(value).shape[1]} value heads"
    if {key_dim % 5, value_dim % 5} != {2}:
        return "its keys and values are repeated along another dimension than the heads"
    if not all(same(val(node).shape[0], val(query).shape[0]) for node in (key, value)):
        return "query, key and value have different batches"
    return None


def _replace(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Results:
    found = _aten.scaled_dot_product_attention.default(
        query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=True
    )
    return (found,)


def _variants() -> tuple[Fused, ...]:
    rests = [(), (KeywordArg("mask"),), (None, 0.0, KeywordArg("causal"))]
    kinds = [{"scale": KeywordArg("scale")}, {}]
    op, heads = _aten.scaled_dot_product_attention.default, (repeated("key"), repeated("value"))
    return tuple(
        Fused(call(op, KeywordArg("query"), *heads, *rest, **kind), _replace, _check)
        for rest, kind in itertools.product(rests, kinds)
    )


RULE = Rule(
    "group_attention", "scaled_dot_product_attention of repeated heads -> enable_gqa", _variants(), frozenset({"cpu"})
)
