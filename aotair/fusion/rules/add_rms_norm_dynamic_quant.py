"""add_rms_norm whose result is quantised row by row -> one op that does both."""

import functools

import torch
from torch.fx.node import Node

from ..matcher import KeywordArg, MultiOutputPattern, call, part
from ..rule import Fused, Results, Rule
from .npu import ADDED_NORM, added_norm_refuses

_npu = torch.ops.npu


def _replace(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    epsilon: float = 1e-6,
    smooth_scales: torch.Tensor | None = None,
    *,
    keeps_sum: bool,
) -> Results:
    y, _, x, scale, _ = _npu.npu_add_rms_norm_dynamic_quant.default(
        x1, x2, gamma, smooth_scale1=smooth_scales, epsilon=epsilon, output_mask=[True, False]
    )
    return (y, scale, x) if keeps_sum else (y, scale)


def _check(x1: Node, x2: Node, gamma: Node, smooth_scales: Node | None = None) -> str | None:
    if smooth_scales is not None and smooth_scales.meta["val"].shape != gamma.meta["val"].shape:
        return f"{smooth_scales.name} has another shape than {gamma.name}"
    return added_norm_refuses(x1, x2, gamma)


def _variant(*, smooth: bool, keeps_sum: bool) -> Fused:
    scales = {"smooth_scales": KeywordArg("smooth_scales")} if smooth else {}
    quantised = call(_npu.npu_dynamic_quant.default, part(ADDED_NORM, 0), **scales)
    outputs = [part(quantised, 0), part(quantised, 1), *([part(ADDED_NORM, 2)] if keeps_sum else [])]
    return Fused(MultiOutputPattern(outputs), functools.partial(_replace, keeps_sum=keeps_sum), _check)


RULE = Rule(
    "add_rms_norm_dynamic_quant",
    "npu_add_rms_norm, npu_dynamic_quant -> npu_add_rms_norm_dynamic_quant",
    tuple(_variant(smooth=smooth, keeps_sum=keeps_sum) for smooth in (True, False) for keeps_sum in (True, False)),
)
