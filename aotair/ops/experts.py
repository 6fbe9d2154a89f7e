"""`torch.ops.air.route_tokens` and `combine_tokens`: tokens in the order of their experts, and what came of them back.

Between them stands `air::grouped_mm`. A program for an NPU has torch_npu's ops in their place, any other the ops of
which the kernels here are made: no node has to know these two.
"""

import torch
from torch import Tensor

from aotair_runtime.devices import grouped

from .registry import HostOp, define_op


def route_tokens(x: Tensor, experts: Tensor, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of x once for each expert that a token has, in the order of experts, and then of tokens.

    x: (tokens, width); experts: (tokens, k) integers from 0 to `number` - 1. Returns the rows (tokens * k, width); for
    each token's each expert the place of its row, int32 (tokens * k,); and where each expert's rows end, int64
    (number,).
    """
    chosen, order = experts.reshape(-1).sort(stable=True)
    rows = x.index_select(0, torch.div(order, experts.shape[1], rounding_mode="floor"))
    every = torch.arange(number, dtype=experts.dtype, device=x.device)
    return rows, order.argsort().to(torch.int32), torch.searchsorted(chosen, every, right=True)


def _routed(x: Tensor, experts: Tensor, number: int) -> tuple[Tensor, Tensor, Tensor]:
    if x.dim() != 2 or experts.dim() != 2:
        given = f"{list(x.shape)} and {list(experts.shape)}"
        raise ValueError(f"route_tokens takes x (tokens, width) and experts (tokens, k), not {given}")
    rows = experts.shape[0] * experts.shape[1]
    places = experts.new_empty(rows, dtype=torch.int32)
    return x.new_empty(rows, x.shape[1]), places, experts.new_empty(number, dtype=torch.int64)


def combine_tokens(rows: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """For each token the sum of its experts' rows, each times its weight.

    rows: (tokens * k, width), which `places` of `route_tokens` point to; weights: (tokens, k). The sum is that of the
    wider dtype, rounded to that of rows once.
    """
    tokens, k = weights.shape
    own = rows.index_select(0, places).view(tokens, k, rows.shape[1])
    return (own * weights.unsqueeze(-1)).sum(1).to(rows.dtype)


def _combined(rows: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    return rows.new_empty(weights.shape[0], rows.shape[1])


define_op(
    "air",
    [
        HostOp("route_tokens(Tensor x, Tensor experts, int number) -> (Tensor, Tensor, Tensor)", route_tokens, _routed),
        HostOp("combine_tokens(Tensor rows, Tensor places, Tensor weights) -> Tensor", combine_tokens, _combined),
    ],
)
ROUTE, COMBINE = torch.ops.air.route_tokens.default, torch.ops.air.combine_tokens.default
PRODUCT = grouped.OP
TAKEN_APART = frozenset({ROUTE, COMBINE})  # no node has them
