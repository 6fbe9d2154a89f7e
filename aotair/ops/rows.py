"""`torch.ops.air.own_rows`, `sum_rows`, `all_rows`: what a rank computes with where each has some of the rows.

The rows are those of all dimensions but the last, one behind the other. A rank has `ceil(rows / ranks)` of them; where
the ranks do not divide their number, the last ones are there to fill up, and nobody reads them. No node has to know
these ops: a program has those of which the kernels here are made.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, ops

from aotair_runtime.devices import collectives as _collectives  # noqa: F401 (defines what they are made of)

from .registry import HostOp, define_op


def own_rows(x: Tensor, number: Tensor, ranks: int, axis: str) -> Tensor:
    """The rows of one rank, of those that all ranks have.

    x: (…, width); number: int64 (1,), the rank's along the axis of the mesh that `axis` names. Returns (ceil(rows /
    ranks), width).
    """
    rows = x.flatten(0, -2)
    if not rows.shape[0] % ranks:
        return rows.view(ranks, -1, rows.shape[1]).index_select(0, number).squeeze(0)
    own = rows_of_one(x, ranks)
    places = torch.arange(own, dtype=number.dtype, device=x.device) + number * own
    return rows.index_select(0, places.clamp(max=rows.shape[0] - 1))


def sum_rows(x: Tensor, ranks: int, axis: str) -> Tensor:
    """The rows of one rank, of the sum of all ranks' x.

    x: (…, width), of each rank another summand. Returns (ceil(rows / ranks), width).
    """
    summed: Tensor = ops.air.reduce_scatter(filled_up(x, ranks).contiguous(), "sum", ranks, axis)
    return summed


def all_rows(x: Tensor, sizes: Sequence[int], ranks: int, axis: str) -> Tensor:
    """The rows of all ranks.

    x: (…, width), the rank's rows. Returns (*sizes, width).
    """
    rows: Tensor = ops.air.all_gather(x.flatten(0, -2).contiguous(), ranks, axis)
    return first(rows, sizes)


def filled_up(x: Tensor, ranks: int) -> Tensor:
    """The rows of x as two dimensions, with rows of zeros behind them where the ranks do not divide their number."""
    rows = x.flatten(0, -2)
    more = -rows.shape[0] % ranks
    return torch.constant_pad_nd(rows, [0, 0, 0, more]) if more else rows


def first(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """As many rows of (rows, width) as `sizes` say, without those that filled them up, as (*sizes, width)."""
    number = math.prod(sizes)
    return (rows if rows.shape[0] == number else rows[:number]).view(*sizes, rows.shape[1])


def rows_of_one(x: Tensor, ranks: int) -> int:
    """How many rows each rank has. Raises ValueError where x has none."""
    if x.dim() < 2:
        raise ValueError(f"a tensor of {x.dim()} dimensions has no rows")
    return (math.prod(x.shape[:-1]) + ranks - 1) // ranks


def _own(x: Tensor, number: Tensor, ranks: int, axis: str) -> Tensor:
    return _sum(x, ranks, axis)


def _sum(x: Tensor, ranks: int, axis: str) -> Tensor:
    return x.new_empty(rows_of_one(x, ranks), x.shape[-1])


def _all(x: Tensor, sizes: Sequence[int], ranks: int, axis: str) -> Tensor:
    return x.new_empty(*sizes, x.shape[-1])


define_op(
    "air",
    [
        HostOp("own_rows(Tensor x, Tensor number, int ranks, str axis) -> Tensor", own_rows, _own),
        HostOp("sum_rows(Tensor x, int ranks, str axis) -> Tensor", sum_rows, _sum),
        HostOp("all_rows(Tensor x, SymInt[] sizes, int ranks, str axis) -> Tensor", all_rows, _all),
    ],
)
OWN, SUM, ALL = ops.air.own_rows.default, ops.air.sum_rows.default, ops.air.all_rows.default
TAKEN_APART = frozenset({OWN, SUM, ALL})  # no node has them
