"""add_rms_norm whose result is quantised by given scales -> one op that does both."""

import functools

import torch
from torch.fx.node import Node

from ..matcher import KeywordArg, MultiOutputPattern, call, part
from ..rule import Fused, Results, Rule
from .npu import ADDED_NORM, added_norm_refuses, dtype_text, val

_npu = torch.ops.npu
_INT8 = (1, 12)  # npu_quantize's numbers for int8 and qint8
_ALIGNED = 32  # bytes


def _replace(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    epsilon: float = 1e-6,
    *,
    keeps_sum: bool,
) -> Results:
    y, _, x = _npu.npu_add_rms_norm_quant.default(x1, x2, gamma, scales, zero_points, axis=-1, epsilon=epsilon)
    return (y, x) if keeps_sum else (y,)


def _check(
    x1: Node, x2: Node, gamma: Node, scales: Node, zero_points: Node | None, dtype: object, axis: int
) -> str | None:
    if axis % val(x1).dim() != val(x1).dim() - 1:
        return f"axis={axis} is not the last dimension"
    if dtype not in _INT8:
        return f"dtype={dtype} is not int8 (1) or qint8 (12)"
    if (reason := added_norm_refuses(x1, x2, gamma)) is not None:
        return reason
    width, size = val(x1).shape[-1], val(x1).dtype.itemsize
    if width * size % _ALIGNED:
        return f"last dimension {width} x {size} bytes is not a multiple of {_ALIGNED} bytes"
    for given in (scales, zero_points):
        if given is not None and val(given).shape != val(gamma).shape:
            return f"{given.name} has the shape {list(val(given).shape)}, {gamma.name} has {list(val(gamma).shape)}"
    if not val(scales).dtype.is_floating_point:
        return f"{scales.name} is {dtype_text(scales)}, not floating-point"
    if zero_points is not None and val(zero_points).dtype in (torch.int8, torch.uint8):
        return f"{zero_points.name} is {dtype_text(zero_points)}, the fused kernel takes int32 or floats"
    return None


def _variant(*, keeps_sum: bool) -> Fused:
    names = map(KeywordArg, ("scales", "zero_points", "dtype", "axis"))
    quantised = call(_npu.npu_quantize.default, part(ADDED_NORM, 0), *names)
    outputs = [quantised, *([part(ADDED_NORM, 2)] if keeps_sum else [])]
    return Fused(MultiOutputPattern(outputs), functools.partial(_replace, keeps_sum=keeps_sum), _check)


RULE = Rule(
    "add_rms_norm_quant",
    "npu_add_rms_norm, npu_quantize along the last dimension -> npu_add_rms_norm_quant",
    (_variant(keeps_sum=True), _variant(keeps_sum=False)),
)
