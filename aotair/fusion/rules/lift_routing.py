"""Tokens in the order of their experts, and their sum -> npu_moe_init_routing_v2 and npu_moe_token_unpermute."""

import torch
from torch.fx.node import Node

from ...ops.experts import COMBINE, ROUTE
from ..matcher import KeywordArg, MultiOutputPattern, PatternExpr, call, part
from ..rule import Fused, Results, Rule
from .npu import HALVES, dtype_text, val

_aten, _npu = torch.ops.aten, torch.ops.npu
_DTYPES = (*HALVES, torch.float32)
_MOST_EXPERTS, _MOST_CHOSEN = 10240, 512
_EXPERTS = KeywordArg("experts")


def _check(x: Node, experts: Node, number: object) -> str | None:
    if val(x).dtype not in _DTYPES:
        return f"{x.name} is {dtype_text(x)}"
    if val(experts).dtype not in (torch.int32, torch.int64):
        return f"{experts.name} is {dtype_text(experts)}"
    if not isinstance(number, int) or not 0 < number <= _MOST_EXPERTS:
        return f"there are {number} experts, the kernel takes up to {_MOST_EXPERTS}"
    return None


def _replace(x: torch.Tensor, experts: torch.Tensor, number: int) -> Results:
    rows, places, counts, _ = _npu.npu_moe_init_routing_v2.default(
        x,
        experts.to(torch.int32),
        expert_num=number,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        active_expert_range=[0, number],
    )
    return rows, places, counts.cumsum(0)


def _check_sum(rows: Node, weights: Node) -> str | None:
    for node in (rows, weights):
        if val(node).dtype not in _DTYPES:
            return f"{node.name} is {dtype_text(node)}"
    chosen = val(weights).shape[1]
    if not isinstance(chosen, int) or chosen > _MOST_CHOSEN:
        return f"a token has {chosen} experts, the kernel takes up to {_MOST_CHOSEN}"
    return None


def _replace_sum(rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor) -> Results:
    return (_npu.npu_moe_token_unpermute.default(rows, places, weights.to(rows.dtype)),)


def _routed(experts: PatternExpr) -> Fused:
    route = call(ROUTE, KeywordArg("x"), experts, KeywordArg("number"))
    return Fused(MultiOutputPattern([part(route, number) for number in range(3)]), _replace, _check)


RULE = Rule(
    "lift_routing",
    "air.route_tokens -> npu_moe_init_routing_v2; air.combine_tokens -> npu_moe_token_unpermute",
    (
        # What lift_gating made wider for others need not become narrow again.
        _routed(call(_aten._to_copy.default, _EXPERTS, dtype=torch.int64)),
        _routed(_EXPERTS),
        Fused(call(COMBINE, *map(KeywordArg, ("rows", "places", "weights"))), _replace_sum, _check_sum),
    ),
    lifts=True,
)
