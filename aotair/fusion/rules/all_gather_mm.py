"""A product over the rows of all ranks -> one op, which multiplies some rows while it waits for others."""

import functools
from collections.abc import Iterator

import torch
from torch.fx.node import Node

from ...target.target import Target
from ..matcher import KeywordArg, MultiOutputPattern, call
from ..rule import Fused, Results, Rule
from .meeting import Turn, products, refuses
from .npu import val

_GATHERED = call(torch.ops.air.all_gather.default, KeywordArg("left"), KeywordArg("ranks"), KeywordArg("group"))


def _check(left: Node, right: Node, ranks: int, group: str, device: Target) -> str | None:
    return refuses(device, group, left, right, val(left).shape[0] * ranks)


def _both(
    left: torch.Tensor, right: torch.Tensor, ranks: int, group: str, bias: torch.Tensor | None = None, *, turn: Turn
) -> Results:
    made, every = torch.ops.npu.npu_all_gather_base_mm.default(left, turn(right), group, ranks, comm_mode="aiv")
    return made if bias is None else made + bias, every


def _product(
    left: torch.Tensor, right: torch.Tensor, ranks: int, group: str, bias: torch.Tensor | None = None, *, turn: Turn
) -> Results:
    op = torch.ops.npu.npu_all_gather_base_mm.default
    made = op(left, turn(right), group, ranks, gather_output=False, comm_mode="aiv")[0]
    return (made if bias is None else made + bias,)


def _variants() -> Iterator[Fused]:
    """The product alone, and where the rows are used otherwise too, these beside it."""
    for made, turn in products(_GATHERED):
        yield Fused(made, functools.partial(_product, turn=turn), _check)
        yield Fused(MultiOutputPattern([made, _GATHERED]), functools.partial(_both, turn=turn), _check)


RULE = Rule("all_gather_mm", "all_gather, linear or mm -> npu_all_gather_base_mm", tuple(_variants()))
