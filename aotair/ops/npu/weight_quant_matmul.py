"""Products with a matrix of whole numbers, which is scaled back to the floats of the other factor.

Source: the documentation of torch_npu's `npu_weight_quant_batchmatmul` (aclnnWeightQuantBatchMatmulV2) and of
`npu_convert_weight_to_int4pack` (aclnnConvertWeightToINT4Pack), whose order of the eight numbers in an int32 this has.
"""

import math

import torch
from torch import Tensor

from ..registry import HostOp, Unserved, only, refuse

_OP = "npu_weight_quant_batchmatmul"
_PACKED = 8  # int4 in an int32


def unpack_int4(packed: Tensor) -> Tensor:
    """Whole numbers from -8 to 7, (rows, columns), of int32 (rows, columns / 8), which hold eight neighbours each, the
    first in the lowest four bits."""
    shifts = torch.arange(28, -1, -4, dtype=torch.int32, device=packed.device)  # what lies above falls out
    return ((packed.unsqueeze(-1) << shifts) >> 28).flatten(1)


def _check(
    x: Tensor, weight: Tensor, antiquant_scale: Tensor, antiquant_offset: Tensor | None, bias: Tensor | None, group: int
) -> None:
    if x.dim() != 2 or weight.dim() != 2 or x.dtype not in (torch.float16, torch.bfloat16):
        raise Unserved(f"{_OP} takes matrices, and x of float16 or bfloat16, not {x.dtype}")
    if weight.dtype not in (torch.int8, torch.int32) or (weight.dtype == torch.int32 and not weight.is_contiguous()):
        raise Unserved(f"the host kernel of {_OP} takes a weight of int8, or of int32 without gaps, not {weight.dtype}")
    k, n = weight.shape[0], weight.shape[1] * (_PACKED if weight.dtype == torch.int32 else 1)
    if x.shape[1] != k:
        raise ValueError(f"{_OP}: x has {x.shape[1]} columns, and the weight {k} rows")
    shapes: tuple[tuple[int, ...], ...] = ((1,), (1, 1), (n,), (1, n))
    if group:
        if group % 32 or not 32 <= group < k:
            raise Unserved(f"{_OP} takes an antiquant_group_size of 32, 64 … below {k}, not {group}")
        shapes = ((math.ceil(k / group), n),)
    for name, value in (("antiquant_scale", antiquant_scale), ("antiquant_offset", antiquant_offset)):
        if value is not None and (value.dtype != x.dtype or tuple(value.shape) not in shapes):
            raise Unserved(
                f"the host kernel of {_OP} takes no {name} of {value.dtype} {tuple(value.shape)}",
                expected=f"{x.dtype} of shape {' or '.join(map(str, shapes))}",
            )
    if antiquant_offset is not None and antiquant_offset.shape != antiquant_scale.shape:
        raise Unserved(f"{_OP} takes an antiquant_offset of the shape of antiquant_scale")
    wide = torch.float32 if x.dtype == torch.bfloat16 else torch.float16
    if bias is not None and (bias.dtype != wide or tuple(bias.shape) not in ((n,), (1, n))):
        raise Unserved(f"{_OP} takes a bias (n,) or (1, n) of {wide} beside x of {x.dtype}, not {bias.dtype}")


def weight_quant_matmul(
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    bias: Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    weight_dtype: int | None = None,
) -> Tensor:
    """`x @ ((weight + antiquant_offset) * antiquant_scale) + bias` in the dtype of x, summed in float32.

    x: (m, k) float16 or bfloat16; weight: (k, n) int8, or (k, n / 8) int32 (`unpack_int4`); antiquant_scale and
    antiquant_offset: (1,), (1, 1), (n,) or (1, n) of x's dtype, and with antiquant_group_size (k / group, n), a row for
    each group of neighbours along k; bias: (n,) or (1, n), float16 beside float16 and float32 beside bfloat16.
    """
    refuse(_OP, {"quant_scale": quant_scale, "quant_offset": quant_offset, "weight_dtype": weight_dtype})
    only(_OP, "inner_precise", inner_precise, (0,))
    _check(x, weight, antiquant_scale, antiquant_offset, bias, antiquant_group_size)
    whole = unpack_int4(weight) if weight.dtype == torch.int32 else weight

    def spread(factor: Tensor) -> Tensor:
        wide = factor.float()
        return wide.repeat_interleave(antiquant_group_size, 0)[: whole.shape[0]] if antiquant_group_size else wide

    wide = whole.float() if antiquant_offset is None else whole.float() + spread(antiquant_offset)
    product = x.float() @ (wide * spread(antiquant_scale))
    return (product if bias is None else product + bias.float()).to(x.dtype)


OPS = (
    HostOp(
        "npu_weight_quant_batchmatmul(Tensor x, Tensor weight, Tensor antiquant_scale, Tensor? antiquant_offset=None, "
        "Tensor? quant_scale=None, Tensor? quant_offset=None, Tensor? bias=None, int antiquant_group_size=0, "
        "int inner_precise=0, int? weight_dtype=None) -> Tensor",
        weight_quant_matmul,
    ),
)
