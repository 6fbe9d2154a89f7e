"""A linear layer whose weight is whole numbers and scales: what it computes, and with which ops of the target."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from aotair_runtime.devices import int8_linear, int8_rows
from aotair_runtime.devices.int4 import GROUPS, ROWS

from ..ops import int4
from ..target.target import Target

_npu = torch.ops.npu
_HALVES = (torch.float16, torch.bfloat16)
MOST_INPUTS = (2**31 - 1) // 128**2  # so many products of int8 fit int32
NPU_MOST = 65535  # rows and columns of a weight, for NPUs' kernels of quantised weights


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight (out, in) in groups along its rows: `(rows - zero) * scale`.

    rows: (out, in) int8, within -2**(bits - 1) … 2**(bits - 1) - 1. scale: (out, groups), float; each is that of
    `in / groups` neighbours. zero: (out, groups) int8 or float, or None where it is 0 everywhere. bits: 8 or 4.
    """

    rows: Tensor
    scale: Tensor
    zero: Tensor | None
    bits: int

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The weight (out, in) in `dtype`, computed in float32."""
        wide = self.rows.float().unflatten(1, (self.scale.shape[1], -1))
        if self.zero is not None:
            wide = wide - self.zero.float().unsqueeze(2)
        whole: Tensor = wide * self.scale.float().unsqueeze(2)
        return whole.flatten(1).to(dtype)


def weight_only(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, target: Target) -> Tensor:
    """`x @ weight.T + bias` in the dtype of x; only the weight is quantised.

    By the target's kernel where it has one for such a weight (`unfit_for_npu`, `unfit_for_cpu`), else over the weight
    in the dtype of x.
    """
    out, width = weight.rows.shape
    group = width // weight.scale.shape[1]
    if target.kind == "cpu" and not unfit_for_cpu(out, width, weight.bits, group, x.dtype, weight.zero is not None):
        on_cpu = _int4_on_cpu if weight.bits == 4 else _int8_on_cpu
        product = on_cpu(x.reshape(-1, width), weight).view(*x.shape[:-1], out)
        return product if bias is None else product + bias
    if target.kind != "npu" or unfit_for_npu(out, width, weight.bits, group, x.dtype):
        return linear(x, weight.dequantized(x.dtype), bias)
    groups = weight.scale.shape[1] > 1
    factors = [None if part is None else part.to(x.dtype) for part in (weight.scale, weight.zero)]
    scale, zero = (None if part is None else part.t().contiguous() if groups else part.view(-1) for part in factors)
    result: Tensor = _npu.npu_weight_quant_batchmatmul(
        x.reshape(-1, width),
        _packed_for_npu(weight.rows.t()) if weight.bits == 4 else weight.rows.t(),
        scale,
        None if zero is None else -zero,
        bias=None if bias is None else bias.float() if x.dtype == torch.bfloat16 else bias,
        antiquant_group_size=group if groups else 0,
    )
    return result.view(*x.shape[:-1], out)


def unfit_for_cpu(out: int, width: int, bits: int, group: int, dtype: torch.dtype, zeros: bool) -> str:
    """Why CPUs have no kernel for a weight (out, width) in groups of so many neighbours, with zeros or not, beside
    activations of `dtype`; empty where they have."""
    kinds = _HALVES if bits == 4 else (torch.bfloat16,)
    if dtype not in kinds:
        return f"activations of {_named(dtype)}, not {' or '.join(map(_named, kinds))}"
    if bits == 8:
        if group != width:
            return f"groups of {group} in int8, not whole rows of {width}"
        if zeros:
            return "int8 with zeros"
        return f"rows of {width}, not a multiple of {int8_rows.WIDTH}" if width % int8_rows.WIDTH else ""
    if group not in GROUPS:
        return f"groups of {group}, not of {', '.join(map(str, GROUPS))}"
    return f"{out} rows, not a multiple of {ROWS}" if out % ROWS else ""


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _int4_on_cpu(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """`x @ weight.T` for x (n, in). Numbers are stored from 0 on, two in a byte."""
    low, high = (weight.rows + 8).to(torch.uint8).unflatten(1, (-1, 2)).unbind(2)
    scale = weight.scale.to(x.dtype)
    summand = torch.zeros_like(scale) if weight.zero is None else (-weight.zero.float() * scale.float()).to(x.dtype)
    factors = torch.stack((scale.t(), summand.t()), dim=2).contiguous()
    made: Tensor = int4.OP(x, low | (high << 4), weight.rows.shape[1] // weight.scale.shape[1], factors)
    return made


def _int8_on_cpu(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """`x @ weight.T` for x (n, in)."""
    made: Tensor = int8_rows.OP(x, weight.rows, weight.scale.view(-1).to(x.dtype))
    return made


def unfit_for_npu(out: int, width: int, bits: int, group: int, dtype: torch.dtype) -> str:
    """Why NPUs have no kernel for a weight (out, width) in groups of so many neighbours beside activations of `dtype`;
    empty where they have."""
    if dtype not in _HALVES:
        return f"activations of {_named(dtype)}, not float16 or bfloat16"
    if max(out, width) > NPU_MOST:
        return f"more than {NPU_MOST} rows or columns"
    if group != width and group % 32:
        return f"groups of {group}, not of a multiple of 32"
    return f"{out} rows of int4, not a multiple of 8" if bits == 4 and out % 8 else ""


def _packed_for_npu(columns: Tensor) -> Tensor:
    """(in, out) int4 as int32 (in, out / 8), the first of eight in the lowest bits. As ops over the weight, because
    torch_npu's own packing runs on a device alone."""
    eights: Tensor = columns.to(torch.int32).unflatten(1, (-1, 8)) & 15
    return (eights << torch.arange(0, 32, 4, dtype=torch.int32)).sum(2, dtype=torch.int32)


def int8_activations(
    x: Tensor, weight: QuantizedWeight, bias: Tensor | None, target: Target, scale: Tensor | None = None
) -> Tensor:
    """`x @ weight.T + bias` in the dtype of x, whose products are those of int8 with int8, summed exactly.

    weight: int8 with one scale for each row, float32, and no zero. scale: (1,) float32, that of all activations
    (`round(x / scale)` within -128 … 127), or None: each token brings its own, its largest absolute value over 127.
    """
    width = weight.rows.shape[1]
    product = {"npu": _npu_product, "cpu": _cpu_product}.get(target.kind, _product)
    result = product(x.reshape(-1, width), weight, bias, target, scale)
    return result.view(*x.shape[:-1], weight.rows.shape[0])


def _npu_product(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, _: Target, scale: Tensor | None) -> Tensor:
    if scale is None:
        tokens, by_token = _npu.npu_dynamic_quant(x)
    else:
        tokens = _npu.npu_quantize(x, scale, None, torch.qint8, -1)
        by_token = scale.expand(x.shape[0]).contiguous()
    result: Tensor = _npu.npu_quant_matmul(
        tokens,
        weight.rows.t().contiguous(),
        weight.scale.view(-1),
        pertoken_scale=by_token,
        bias=None if bias is None else bias.float(),
        output_dtype=x.dtype,
    )
    return result


def _cpu_product(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, _: Target, scale: Tensor | None) -> Tensor:
    by_token, by_row = None, weight.scale.view(-1)
    if scale is None:
        tokens, by_token = int8_linear.QUANTISE(x)
    else:
        tokens, by_row = _whole(x.float(), scale), by_row * scale
    result: Tensor = int8_linear.MULTIPLY(
        tokens, weight.rows, by_row, by_token, None if bias is None else bias.float(), x.dtype
    )
    return result


def _product(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, target: Target, scale: Tensor | None) -> Tensor:
    wide, by_row = x.float(), weight.scale.view(-1)
    if scale is None:
        tokens, by_token = rounded_tokens(wide)
        scaled = int8_sums(tokens, weight.rows, target) * by_token
    else:
        scaled, by_row = int8_sums(_whole(wide, scale), weight.rows, target), by_row * scale
    result = scaled * by_row if bias is None else scaled * by_row + bias.float()
    return result.to(x.dtype)


def _whole(wide: Tensor, scale: Tensor) -> Tensor:
    return (wide / scale).round().clamp(-128, 127).to(torch.int8)


def rounded_tokens(wide: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of float32 as int8, and the scale of each (rows, 1): its largest absolute value over 127."""
    by_token = (wide.abs().amax(1, keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
    return (wide / by_token).round().to(torch.int8), by_token


def int8_sums(tokens: Tensor, rows: Tensor, target: Target) -> Tensor:
    """`tokens @ rows.T` of int8 as int32. The rows stay as they lie: on the CPU their turned copy is 2 to 5 times as
    slow. There torch's kernel is wrong for rows of one number; that of CUDA takes more than 16 tokens, and multiples of
    8 of the other two sizes."""
    if target.kind != "cuda":
        one = (0, 1 if rows.shape[1] == 1 else 0)
        return torch._int_mm(pad(tokens, one), pad(rows, one).t()) if one[1] else torch._int_mm(tokens, rows.t())
    out, width = rows.shape
    product = torch._int_mm(pad(tokens, (0, -width % 8, 0, 16)), pad(rows, (0, -width % 8, 0, -out % 8)).t())
    return product[: tokens.shape[0], :out]
