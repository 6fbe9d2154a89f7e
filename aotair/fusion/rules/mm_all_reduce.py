"""A product whose parts all ranks add up -> one op, which sends some rows while it multiplies others."""

import functools
import math

import torch
from torch.fx.node import Node

from ...target.target import Target
from ..matcher import KeywordArg, call
from ..rule import Fused, Results, Rule
from .meeting import Turn, no_sum, products, refuses
from .npu import val


def _check(left: Node, right: Node, reduce: str, group: str, device: Target, bias: object | None = None) -> str | None:
    return no_sum(reduce, bias) or refuses(
        device, group, left, right, math.prod(val(left).shape[:-1]), dims=(2, 3), least_k=1
    )


def _replace(left: torch.Tensor, right: torch.Tensor, reduce: str, group: str, *, turn: Turn) -> Results:
    return (torch.ops.npu.npu_mm_all_reduce_base.default(left, turn(right), group, reduce_op=reduce),)


def _variants() -> tuple[Fused, ...]:
    op, met = torch.ops.air.all_reduce.default, (KeywordArg("reduce"), KeywordArg("group"))
    found = products(KeywordArg("left"))
    return tuple(Fused(call(op, one, *met), functools.partial(_replace, turn=turn), _check) for one, turn in found)


RULE = Rule("mm_all_reduce", "linear or mm, all_reduce -> npu_mm_all_reduce_base", _variants())
