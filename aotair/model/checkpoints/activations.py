"""Products whose activations are quantised too: by kernels for int8 where the target has them, else in floats.

In floats, activations are rounded to what the format can hold and multiplied as what that stands for: the numbers are
the format's, and the time is that of floats.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...target.target import Target
from ..quantized_linear import MOST_INPUTS, QuantizedWeight, int8_activations, int8_sums, weight_only

_HALVES = (torch.float16, torch.bfloat16)
_LARGEST = 448.0  # of float8_e4m3fn
_LEAST_SCALE = torch.finfo(torch.float32).eps  # of a row of zeros


@dataclass(frozen=True)
class Activations:
    """How they are quantised: to `bits` of int, or to float8_e4m3fn. Dynamic ones bring a scale for each token, or for
    each `group` of neighbours in it; static ones have one for all, and a zero point or none."""

    floating: bool
    dynamic: bool
    symmetric: bool = True
    bits: int = 8
    group: int | None = None


@dataclass(frozen=True)
class Fixed:
    """The scale of static activations and their zero point, of one element each."""

    scale: Tensor
    zero: Tensor | None


def product(
    x: Tensor,
    weight: QuantizedWeight,
    bias: Tensor | None,
    activations: Activations | None,
    fixed: Fixed | None,
    target: Target,
) -> Tensor:
    """`x @ weight.T + bias` in the dtype of x, with x quantised as `activations` say."""
    if activations is None:
        return weight_only(x, weight, bias, target)
    if not _is_int8(weight, activations):
        return weight_only(rounded(x, activations, fixed), weight, bias, target)
    if target.kind != "npu":
        return _by_sums(x, weight, bias, activations, fixed, target)
    if x.dtype not in _HALVES:
        return weight_only(rounded(x, activations, fixed), weight, bias, target)
    if fixed is None:
        return int8_activations(x, replace(weight, scale=weight.scale.float()), bias, target)
    return _by_fixed(x, weight, bias, fixed)


def float8_product(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """`x @ (weight * scale).T + bias` in the dtype of x; scale spreads over the float8 weight."""
    return torch.nn.functional.linear(x, (weight.float() * scale.float()).to(x.dtype), bias)


def rounded(x: Tensor, activations: Activations, fixed: Fixed | None) -> Tensor:
    """x as the format can hold it, in its own dtype."""
    wide = x.float()
    if activations.group is not None:
        wide = wide.unflatten(-1, (-1, activations.group))
    scale, zero = (fixed.scale.float(), fixed.zero) if fixed is not None else _scales(wide, activations)
    if activations.floating:
        held = (wide / scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).float()
    else:
        held = _whole(wide, scale, zero, activations)
        held = held if zero is None else held - zero.float()
    return (held * scale).to(x.dtype).view(x.shape)


def _whole(wide: Tensor, scale: Tensor, zero: Tensor | None, activations: Activations) -> Tensor:
    """The whole numbers that activations become, zero point included, as float32."""
    most = 2.0 ** (activations.bits - 1) - 1
    # A token's largest number is half a step beyond `most`: with one step more below zero, the last bit of a negative
    # one would say which of two it becomes.
    least = -most if activations.dynamic and activations.symmetric else -most - 1
    held = wide / scale
    return (held if zero is None else held + zero.float()).round().clamp(least, most)


def fixed_numbers(x: Tensor, fixed: Fixed) -> Tensor:
    """The whole numbers of int8 that static activations become, zero point included, as float32."""
    wide = x.float() / fixed.scale.float()
    return (wide if fixed.zero is None else wide + fixed.zero.float()).round().clamp(-128, 127)


def _scales(wide: Tensor, activations: Activations) -> tuple[Tensor, Tensor | None]:
    """The scale of each token or group, and its zero point."""
    if activations.floating:
        return _not_zero(wide.abs().amax(-1, keepdim=True) / _LARGEST), None
    steps = 2.0**activations.bits - 1
    if activations.symmetric:
        return _not_zero(wide.abs().amax(-1, keepdim=True) / (steps / 2)), None
    low, high = wide.amin(-1, keepdim=True).clamp(max=0), wide.amax(-1, keepdim=True).clamp(min=0)
    scale, least = _not_zero((high - low) / steps), -(2.0 ** (activations.bits - 1))
    return scale, (least - low / scale).round().clamp(least, least + steps)


def _not_zero(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, _LEAST_SCALE, scale)


# ---- the kernels for int8 ------------------------------------------------------------------------------------------


def _is_int8(weight: QuantizedWeight, activations: Activations) -> bool:
    """Whether it is a product of int8 by int8: rows of one scale and no zero point, and tokens of one scale, static or
    without a zero point."""
    plain = weight.zero is None and weight.scale.shape[1] == 1 and weight.bits == 8
    plain = plain and weight.rows.shape[1] <= MOST_INPUTS
    tokens = activations.bits == 8 and activations.group is None and (activations.symmetric or not activations.dynamic)
    return plain and tokens and not activations.floating


def _by_sums(
    x: Tensor,
    weight: QuantizedWeight,
    bias: Tensor | None,
    activations: Activations,
    fixed: Fixed | None,
    target: Target,
) -> Tensor:
    """With a kernel that sums products of int8. A zero point leaves each sum too large by itself times the sum of the
    row."""
    wide = x.float().reshape(-1, x.shape[-1])
    scale, zero = (fixed.scale.float().view(()), fixed.zero) if fixed is not None else _scales(wide, activations)
    sums = int8_sums(_whole(wide, scale, zero, activations).to(torch.int8), weight.rows, target)
    if zero is not None:
        sums = sums - weight.rows.to(torch.int32).sum(1) * zero.to(torch.int32)
    result = sums * scale * weight.scale.float().flatten()
    result = result if bias is None else result + bias.float()
    return result.to(x.dtype).view(*x.shape[:-1], weight.rows.shape[0])


def _by_fixed(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, fixed: Fixed) -> Tensor:
    """The zero point leaves each product too large by itself times the sum of the row, which is subtracted in int32."""
    above = None if fixed.zero is None else -(weight.rows.to(torch.int32).sum(1) * fixed.zero.to(torch.int32))
    result = int8_product(
        x, fixed, weight.rows, weight.scale.float().flatten() * fixed.scale.float(), None if above is None else above
    )
    return result if bias is None else result + bias


def int8_product(x: Tensor, fixed: Fixed, rows: Tensor, scale: Tensor, added: Tensor | None) -> Tensor:
    """`(int8(x) @ rows.T + added) * scale` in the dtype of x: rows (out, in) int8, scale (out,) float32, added (out,)
    int32 or None."""
    tokens = torch.ops.npu.npu_quantize(
        x,
        fixed.scale.float().view(1),
        None if fixed.zero is None else fixed.zero.float().view(1),
        torch.int8,
        -1,
        True,
    )
    result: Tensor = torch.ops.npu.npu_quant_matmul(
        tokens.view(-1, tokens.shape[-1]),
        rows.t().contiguous(),
        scale,
        bias=None if added is None else added.to(torch.int32),
        output_dtype=x.dtype,
    )
    return result.view(*x.shape[:-1], result.shape[-1])
