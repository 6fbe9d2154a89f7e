"""Quantisation: by given scales, and by scales that each row brings.

Source: the documentation of torch_npu's `npu_quantize` and `npu_dynamic_quant` (aclnnAscendQuant, aclnnDynamicQuant).
"""

import torch
from torch import Tensor

from ..registry import HostOp

# What npu_quantize's `dtype` stands for: torch's numbers of scalar types.
QUANTIZED = {0: torch.uint8, 13: torch.uint8, 1: torch.int8, 12: torch.int8, 3: torch.int32, 14: torch.int32}


def quantize_affine(
    x: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: torch.dtype, div_mode: bool
) -> Tensor:
    """`round(x / scales + zero_points)` (or `x * scales`, without div_mode), clamped to the dtype."""
    wide = x.float() / scales.float() if div_mode else x.float() * scales.float()
    if zero_points is not None:
        wide = wide + zero_points.float()
    limits = torch.iinfo(dtype)
    return wide.round().clamp(limits.min, limits.max).to(dtype)


def quantize(
    input: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: int, axis: int = 1, div_mode: bool = True
) -> Tensor:
    """`quantize_affine` with one scale for all, or one for each index of `axis`. The result is shaped like input."""
    if scales.numel() > 1:
        shape = [1] * input.dim()
        shape[axis] = scales.numel()
        scales = scales.reshape(shape)
        zero_points = None if zero_points is None else zero_points.reshape(shape)
    return quantize_affine(input, scales, zero_points, QUANTIZED[dtype], div_mode)


def dynamic_quant(
    input: Tensor, *, smooth_scales: Tensor | None = None, group_index: Tensor | None = None,
    dst_type: int | None = None, quant_mode: str = "pertoken", dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Each row (last dimension) as int8 with a scale of its own: `scale = max(abs(row)) / 127`, `round(row / scale)`.

    input: (..., width), float16 or bfloat16. smooth_scales, (width,), multiply it before; with group_index, cumulative
    ends of groups of rows, they are (groups, width). Returns int8 like input and float32 (...).
    """
    if quant_mode != "pertoken":
        raise NotImplementedError(
            f"the host kernel of npu_dynamic_quant knows quant_mode='pertoken', not {quant_mode!r}"
        )
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
        quantize,
    ),
    HostOp(
        "npu_dynamic_quant(Tensor input, *, Tensor? smooth_scales=None, Tensor? group_index=None, int? dst_type=None, "
        'str quant_mode="pertoken", float dst_type_max=0.) -> (Tensor, Tensor)',
        dynamic_quant,
    ),
)
