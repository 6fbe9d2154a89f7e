"""A residual addition whose result is normed -> npu_add_rms_norm, which gives the sum as well."""

import torch
from torch.fx.node import Node

from ..matcher import Either, KeywordArg, MultiOutputPattern, call, part
from ..rule import Fused, Results, Rule
from .npu import dtype_text, not_alike, val

_npu = torch.ops.npu
_SUM = call(torch.ops.aten.add.Tensor, KeywordArg("x1"), KeywordArg("x2"))
_NORM = Either(
    call(_npu.npu_rms_norm.default, _SUM, KeywordArg("gamma"), KeywordArg("epsilon")),
    call(_npu.npu_rms_norm.default, _SUM, KeywordArg("gamma")),
)


def _check(x1: Node, x2: Node, gamma: Node) -> str | None:
    if val(x1).dtype != val(x2).dtype:
        return f"{x1.name} is {dtype_text(x1)} and {x2.name} is {dtype_text(x2)}"
    # A gamma of float32 is one that was computed, as 1 + weight: it is rounded once, as the sum is.
    if val(gamma).dtype not in (val(x1).dtype, torch.float32):
        return f"{gamma.name} is {dtype_text(gamma)} and {x1.name} is {dtype_text(x1)}"
    return not_alike(x1, x2)


def _replace(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> Results:
    y, _, x = _npu.npu_add_rms_norm.default(x1, x2, gamma.to(x1.dtype), epsilon)
    return y, x


RULE = Rule(
    "lift_add_rms_norm",
    "add, npu_rms_norm -> npu_add_rms_norm",
    (Fused(MultiOutputPattern([part(_NORM, 0), _SUM]), _replace, _check),),
    lifts=True,
)
