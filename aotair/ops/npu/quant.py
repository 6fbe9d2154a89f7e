"""Quantisation: by given scales, and by scales that each row brings.

Source: the documentation of torch_npu's `npu_quantize` and `npu_dynamic_quant` (aclnnAscendQuant, aclnnDynamicQuant).
"""

import torch
from torch import Tensor

from ..registry import HostOp, Unserved, only

# What npu_quantize's `dtype` stands for: torch's numbers of scalar types.
QUANTIZED = {0: torch.uint8, 13: torch.uint8, 1: torch.int8, 12: torch.int8, 3: torch.int32, 14: torch.int32}
_QUANTIZED_BY_PRODUCT = (1, 12)  # of these, what the device makes without div_mode
INT8 = (None, 1)  # what the ops that quantise to int8 take as their dtype


_DYNAMIC = "npu_dynamic_quant"


def quantize_affine(
    x: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: torch.dtype, div_mode: bool
) -> Tensor:
    """`round(x / scales + zero_points)` (or `x * scales`, without div_mode), clamped to the dtype."""
    wide = x.float() / scales.float() if div_mode else x.float() * scales.float()
    if zero_points is not None:
        wide = wide + zero_points.float()
    limits = torch.iinfo(dtype)
    return wide.round().clamp(limits.min, limits.max).to(dtype)


def quantize_npu(
    input: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: int, axis: int = 1, div_mode: bool = True
) -> Tensor:
    """`quantize_affine` with one scale for all, or one for each index of `axis`. The result is shaped like input.

    Without div_mode the device knows two axes, and so does this: -2 is the last but one, and every larger number the
    last.
    """
    only("npu_quantize", "dtype", dtype, QUANTIZED if div_mode else _QUANTIZED_BY_PRODUCT)
    if not (-input.dim() if div_mode else -2) <= axis < input.dim():
        raise Unserved(f"the host kernel of npu_quantize knows no axis={axis} of {input.dim()} dimensions")
    if not div_mode:
        axis = -2 if axis == -2 else -1
    if zero_points is not None and zero_points.numel() != scales.numel():
        raise Unserved(f"npu_quantize has {scales.numel()} scales and {zero_points.numel()} zero_points")
    if scales.numel() > 1:
        if scales.numel() != input.shape[axis]:
            raise Unserved(f"npu_quantize has {scales.numel()} scales for {input.shape[axis]} indices of axis={axis}")
        shape = [1] * input.dim()
        shape[axis] = scales.numel()
        scales = scales.reshape(shape)
        zero_points = None if zero_points is None else zero_points.reshape(shape)
    return quantize_affine(input, scales, zero_points, QUANTIZED[dtype], div_mode)


def dynamic_quant(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Each row (last dimension) as int8 with a scale of its own: `scale = max(abs(row)) / 127`, `round(row / scale)`.

    input: (..., width), float16 or bfloat16. smooth_scales, (width,), multiply it before; with group_index, cumulative
    ends of groups of rows, they are (groups, width). Returns int8 like input and float32 (...).
    """
    only(_DYNAMIC, "dst_type", dst_type, INT8)
    only(_DYNAMIC, "quant_mode", quant_mode, ("pertoken",))
    only(_DYNAMIC, "dst_type_max", dst_type_max, (0.0,))
    if input.dim() < 2:
        raise Unserved(f"{_DYNAMIC} takes an input of two dimensions or more", got=f"{input.dim()}")
    dims = 0 if smooth_scales is None else smooth_scales.dim()
    if (group_index is not None) != (dims == 2):
        raise Unserved(f"{_DYNAMIC} takes a group_index with smooth_scales of two dimensions, and only then")
    wide = input.float()
    if smooth_scales is not None:
        if group_index is not None:
            rows = torch.arange(input.shape[0], device=input.device)
            smooth_scales = smooth_scales[torch.searchsorted(group_index.to(rows.dtype), rows, right=True)]
        wide = wide * smooth_scales.float()
    scale = wide.abs().amax(-1) / 127
    safe = torch.where(scale == 0, 1.0, scale)
    return (wide / safe.unsqueeze(-1)).round().clamp(-128, 127).to(torch.int8), scale


OPS = (
    HostOp(
        "npu_quantize(Tensor input, Tensor scales, Tensor? zero_points, int dtype, int axis=1, bool div_mode=True)"
        " -> Tensor",
        quantize_npu,
    ),
    HostOp(
        "npu_dynamic_quant(Tensor input, *, Tensor? smooth_scales=None, Tensor? group_index=None, int? dst_type=None, "
        'str quant_mode="pertoken", float dst_type_max=0.) -> (Tensor, Tensor)',
        dynamic_quant,
    ),
)
