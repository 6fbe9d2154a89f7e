"""A product over the rows of all ranks -> one op, which multiplies some rows while it waits for others."""

import functools
import math
from collections.abc import Iterator, Sequence

import torch
from torch.fx.node import Node

from ...ops import row_products, rows
from ...target.target import Target
from ..matcher import KeywordArg, MultiOutputPattern, call
from ..rule import Fused, Results, Rule
from .meeting import ANY, Turn, products, refuses
from .npu import val

_GATHERED = call(torch.ops.air.all_gather.default, KeywordArg("left"), KeywordArg("ranks"), KeywordArg("group"))
_ROWS = call(rows.ALL, KeywordArg("left"), KeywordArg("sizes"), KeywordArg("ranks"), KeywordArg("axis"))


def _check(left: Node, right: Node, ranks: int, group: str, device: Target) -> str | None:
    return refuses(device, group, left, right, val(left).shape[0] * ranks)


def _check_rows(left: Node, right: Node, ranks: int, axis: str, device: Target) -> str | None:
    return refuses(device, axis, left, right, math.prod(val(left).shape[:-1]) * ranks, dims=ANY)


def _both(
    left: torch.Tensor, right: torch.Tensor, ranks: int, group: str, bias: torch.Tensor | None = None, *, turn: Turn
) -> Results:
    made, every = torch.ops.npu.npu_all_gather_base_mm.default(left, turn(right), group, ranks, comm_mode="aiv")
    return _plus(made, bias), every


def _product(
    left: torch.Tensor, right: torch.Tensor, ranks: int, group: str, bias: torch.Tensor | None = None, *, turn: Turn
) -> Results:
    op = torch.ops.npu.npu_all_gather_base_mm.default
    return (_plus(op(left, turn(right), group, ranks, gather_output=False, comm_mode="aiv")[0], bias),)


def _both_of_rows(
    left: torch.Tensor,
    right: torch.Tensor,
    sizes: Sequence[int],
    ranks: int,
    axis: str,
    bias: torch.Tensor | None = None,
    *,
    turn: Turn,
) -> Results:
    made, every = row_products.ALL(left, turn(right), sizes, ranks, axis)
    return _plus(made, bias), every


def _product_of_rows(
    left: torch.Tensor,
    right: torch.Tensor,
    sizes: Sequence[int],
    ranks: int,
    axis: str,
    bias: torch.Tensor | None = None,
    *,
    turn: Turn,
) -> Results:
    return (_plus(row_products.ALL(left, turn(right), sizes, ranks, axis, gather_output=False)[0], bias),)


def _plus(made: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return made if bias is None else made + bias


def _variants() -> Iterator[Fused]:
    """The product alone, and where the rows are used otherwise too, these beside it; of ranks that have as many rows
    each, and of the style `sequence`, whose last rows may be there to fill up."""
    for gathered, alone, both, check in (
        (_GATHERED, _product, _both, _check),
        (_ROWS, _product_of_rows, _both_of_rows, _check_rows),
    ):
        for made, turn in products(gathered):
            yield Fused(made, functools.partial(alone, turn=turn), check)
            yield Fused(MultiOutputPattern([made, gathered]), functools.partial(both, turn=turn), check)


RULE = Rule("all_gather_mm", "all_gather, linear or mm -> npu_all_gather_base_mm", tuple(_variants()))
