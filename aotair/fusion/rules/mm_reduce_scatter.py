"""A product whose parts the ranks add up, of which each keeps its rows -> one op."""

import functools

import torch
from torch.fx.node import Node

from ...target.target import Target
from ..matcher import KeywordArg, call
from ..rule import Fused, Results, Rule
from .meeting import Turn, no_sum, products, refuses
from .npu import val


def _check(left: Node, right: Node, reduce: str, group: str, device: Target, bias: object | None = None) -> str | None:
    return no_sum(reduce, bias) or refuses(device, group, left, right, val(left).shape[0])


def _replace(left: torch.Tensor, right: torch.Tensor, reduce: str, ranks: int, group: str, *, turn: Turn) -> Results:
    op, rows = torch.ops.npu.npu_mm_reduce_scatter_base.default, left.shape[0] // ranks
    made = op(left, turn(right), group, ranks, reduce_op=reduce, comm_mode="aiv")
    return (made.view(rows, made.shape[1]),)  # torch_npu's Meta kernel divides a symbol as floats are divided


def _variants() -> tuple[Fused, ...]:
    op, met = torch.ops.air.reduce_scatter.default, tuple(map(KeywordArg, ("reduce", "ranks", "group")))
    found = products(KeywordArg("left"))
    return tuple(Fused(call(op, one, *met), functools.partial(_replace, turn=turn), _check) for one, turn in found)


RULE = Rule("mm_reduce_scatter", "linear or mm, reduce_scatter -> npu_mm_reduce_scatter_base", _variants())
