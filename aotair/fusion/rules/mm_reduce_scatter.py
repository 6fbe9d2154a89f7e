"""A product whose parts the ranks add up, of which each keeps its rows -> one op."""

import functools
import math
from collections.abc import Iterator

import torch
from torch.fx.node import Node

from ...ops import row_products, rows
from ...target.target import Target
from ..matcher import KeywordArg, call
from ..rule import Fused, Results, Rule
from .meeting import ANY, Turn, no_sum, products, refuses
from .npu import val


def _check(left: Node, right: Node, reduce: str, group: str, device: Target, bias: object | None = None) -> str | None:
    return no_sum(reduce, bias) or refuses(device, group, left, right, val(left).shape[0])


def _replace(left: torch.Tensor, right: torch.Tensor, reduce: str, ranks: int, group: str, *, turn: Turn) -> Results:
    op, own = torch.ops.npu.npu_mm_reduce_scatter_base.default, left.shape[0] // ranks
    made = op(left, turn(right), group, ranks, reduce_op=reduce, comm_mode="aiv")
    return (made.view(own, made.shape[1]),)  # torch_npu's Meta kernel divides a symbol as floats are divided


def _check_rows(left: Node, right: Node, axis: str, device: Target, bias: object | None = None) -> str | None:
    return no_sum("sum", bias) or refuses(device, axis, left, right, math.prod(val(left).shape[:-1]), dims=ANY)


def _replace_rows(left: torch.Tensor, right: torch.Tensor, ranks: int, axis: str, *, turn: Turn) -> Results:
    return (row_products.SUM(left, turn(right), ranks, axis),)


def _variants() -> Iterator[Fused]:
    """Of as many rows for each rank; and of the style `sequence`, whose rows may be filled up."""
    op, met = torch.ops.air.reduce_scatter.default, tuple(map(KeywordArg, ("reduce", "ranks", "group")))
    for one, turn in products(KeywordArg("left")):
        yield Fused(call(op, one, *met), functools.partial(_replace, turn=turn), _check)
        by_rows = call(rows.SUM, one, KeywordArg("ranks"), KeywordArg("axis"))
        yield Fused(by_rows, functools.partial(_replace_rows, turn=turn), _check_rows)


RULE = Rule("mm_reduce_scatter", "linear or mm, reduce_scatter -> npu_mm_reduce_scatter_base", tuple(_variants()))
