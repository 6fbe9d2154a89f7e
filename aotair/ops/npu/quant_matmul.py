"""Products of int8 matrices, summed exactly and scaled back.

Source: the documentation of torch_npu's `npu_quant_matmul` (aclnnQuantMatmulV3 to V5).
"""

import torch
from torch import Tensor

from ..registry import HostOp, Unserved, only, refuse

# What `output_dtype` stands for: torch's numbers of scalar types.
OUTPUTS = {1: torch.int8, 3: torch.int32, 5: torch.float16, 15: torch.bfloat16}
_EXACT_IN_FLOAT32 = 1024  # so many products of two int8 stay below 2**24


def int8_product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` of int8 matrices as int32, exact: in floats that hold every partial sum."""
    wide = torch.float32 if left.shape[-1] <= _EXACT_IN_FLOAT32 else torch.float64
    return torch.matmul(left.to(wide), right.to(wide)).to(torch.int32)


def rescale(product: Tensor, scale: Tensor, rows: Tensor | None, bias: Tensor | None) -> Tensor:
    """`(product + bias) * scale * rows` in float32, with a scale for each row, or with the bias last where it is not
    int32."""
    if bias is not None and bias.dtype == torch.int32:
        product, bias = product + bias, None
    wide = product.float() * scale.float()
    if rows is not None:
        wide = wide * rows.float().unsqueeze(-1)
    return wide if bias is None else wide + bias.float()


def _check(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    pertoken_scale: Tensor | None,
    bias: Tensor | None,
    output_dtype: int | None,
    unserved: dict[str, object],
) -> None:
    refuse("npu_quant_matmul", unserved)
    if x1.dtype != torch.int8 or x2.dtype != torch.int8:
        raise Unserved(f"the host kernel of npu_quant_matmul takes x1 and x2 of int8, not {x1.dtype}")
    if scale.dtype not in (torch.float32, torch.bfloat16) or scale.dim() != 1:
        raise Unserved(
            f"the host kernel of npu_quant_matmul takes no scale of {scale.dtype} with {scale.dim()} dimensions"
        )
    if pertoken_scale is not None and (tuple(pertoken_scale.shape) != x1.shape[-2:-1] or output_dtype in (None, 1)):
        raise Unserved("the host kernel of npu_quant_matmul takes a pertoken_scale (m,), not for int8")
    if bias is not None and (bias.dim() not in (1, 3) or bias.shape[-1] != x2.shape[-1]):
        raise Unserved(f"npu_quant_matmul takes a bias (n,) or (batch, 1, n), not {tuple(bias.shape)}")
    served = (None, *OUTPUTS) if scale.dtype == torch.float32 else (15, 3)
    only("npu_quant_matmul", "output_dtype", output_dtype, served)


def quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: int | None = None,
    **unserved: object,
) -> Tensor:
    """`(x1 @ x2 + bias) * scale * pertoken_scale + offset`, or `x1 @ x2 * scale * pertoken_scale + bias` where bias is
    no int32.

    x1: (..., m, k) and x2: (..., k, n), int8, whose batches spread over each other; scale: (1,) or (n,), float32 or
    bfloat16 (not the packed int64 of `npu_trans_quant_param`); pertoken_scale: (m,) float32; bias: (n,) or (batch, 1,
    n); offset: (1,) or (n,) float32, for a result in int8 alone. The result is int8, rounded and clamped, without an
    output_dtype; float16 or bfloat16; or int32, which is `x1 @ x2 + bias` and leaves the scale out.
    """
    _check(x1, x2, scale, pertoken_scale, bias, output_dtype, unserved)
    dtype = OUTPUTS[1 if output_dtype is None else output_dtype]
    product = int8_product(x1, x2)
    if offset is not None and dtype != torch.int8:
        raise ValueError("npu_quant_matmul takes an offset for a result in int8 alone")
    if dtype == torch.int32:
        if bias is not None and bias.dtype != torch.int32:
            raise ValueError(f"npu_quant_matmul takes a bias of int32 for a result in int32, not {bias.dtype}")
        return product if bias is None else product + bias
    wide = rescale(product, scale, pertoken_scale, bias)
    if dtype != torch.int8:
        return wide.to(dtype)
    return (wide if offset is None else wide + offset).round().clamp(-128, 127).to(torch.int8)


OPS = (
    HostOp(
        "npu_quant_matmul(Tensor x1, Tensor x2, Tensor scale, *, Tensor? offset=None, Tensor? pertoken_scale=None, "
        "Tensor? bias=None, int? output_dtype=None, int? x1_dtype=None, int? x2_dtype=None, "
        "int? pertoken_scale_dtype=None, int? scale_dtype=None, int[]? group_sizes=None, Tensor? y_scale=None) "
        "-> Tensor",
        quant_matmul,
    ),
)
