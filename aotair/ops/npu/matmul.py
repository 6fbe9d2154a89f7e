"""Matrix products with a permutation before and after, and gated activations.

Source: the documentation of torch_npu's `npu_transpose_batchmatmul` and `npu_swiglu` (aclnnTransposeBatchMatMul,
aclnnSwiGlu).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..registry import HostOp


def transpose_batchmatmul(
    input: Tensor, weight: Tensor, *, bias: Tensor | None = None, scale: Tensor | None = None,
    perm_x1: Sequence[int] | None = None, perm_x2: Sequence[int] | None = None, perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
) -> Tensor:  # fmt: skip
    """`permute(permute(input, perm_x1) @ permute(weight, perm_x2), perm_y)` of 3-D tensors.

    After their permutations input is (batch, m, k) and weight (batch, k, n); perm_y is [1, 0, 2] by default, so that
    the result is (m, batch, n). Products are summed in float32.
    """
    if bias is not None or scale is not None or (batch_split_factor or 1) != 1:
        raise NotImplementedError("the host kernel of npu_transpose_batchmatmul takes no bias, scale or batch split")
    left = input if perm_x1 is None else input.permute(*perm_x1)
    right = weight if perm_x2 is None else weight.permute(*perm_x2)
    product = torch.bmm(left.float(), right.float()).to(input.dtype)
    return product.permute(*(perm_y or (1, 0, 2))).contiguous()


def swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """`silu(a) * b`, where a and b are the halves of input along `dim`."""
    a, b = input.float().chunk(2, dim)
    return (torch.nn.functional.silu(a) * b).to(input.dtype)


OPS = (
    HostOp(
        "npu_transpose_batchmatmul(Tensor input, Tensor weight, *, Tensor? bias=None, Tensor? scale=None, "
        "int[]? perm_x1=None, int[]? perm_x2=None, int[]? perm_y=None, int? batch_split_factor=1) -> Tensor",
        transpose_batchmatmul,
    ),
    HostOp("npu_swiglu(Tensor input, int dim=-1) -> Tensor", swiglu),
)
