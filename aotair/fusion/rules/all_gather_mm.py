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


def _replace(
    left: torch.Tensor,
    right: torch.Tensor,
    ranks: int,
    group: str,
    bias: torch.Tensor | None = None,
    *,
    turn: Turn,
    both: bool,
) -> Results:
    op = torch.ops.npu.npu_all_gather_base_mm.default
    made, every = op(left, turn(right), group, ranks, gather_output=both, comm_mode="aiv")
    return _results(made, every, bias, both)


def _replace_rows(
    left: torch.Tensor,
    right: torch.Tensor,
    sizes: Sequence[int],
    ranks: int,
    axis: str,
    bias: torch.Tensor | None = None,
    *,
    turn: Turn,
    both: bool,
) -> Results:
    made, every = row_products.ALL(left, turn(right), sizes, ranks, axis, gather_output=both)
    return _results(made, every, bias, both)


def _results(made: torch.Tensor, every: torch.Tensor, bias: torch.Tensor | None, both: bool) -> Results:
    product = made if bias is None else made + bias
    return (product, every) if both else (product,)


def _variants() -> Iterator[Fused]:
    """The product alone, and where the rows are used otherwise too, these beside it; of ranks that have as many rows
    each, and of the style `sequence`, whose last rows may be there to fill up."""
    for gathered, replace, check in ((_GATHERED, _replace, _check), (_ROWS, _replace_rows, _check_rows)):
        for made, turn in products(gathered):
            yield Fused(made, functools.partial(replace, turn=turn, both=False), check)
            yield Fused(MultiOutputPattern([made, gathered]), functools.partial(replace, turn=turn, both=True), check)


RULE = Rule("all_gather_mm", "all_gather, linear or mm -> npu_all_gather_base_mm", tuple(_variants()))
