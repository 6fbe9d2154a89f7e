"""Matrix products with a permutation before and after, and gated activations.

Source: the documentation of torch_npu's `npu_transpose_batchmatmul`, `npu_swiglu` and `npu_geglu`
(aclnnTransposeBatchMatMul, aclnnSwiGlu, aclnnGeGluV3).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..registry import HostOp, Unserved, only, refuse

_OP = "npu_transpose_batchmatmul"
_PERMUTATIONS = {"perm_x1": ((0, 1, 2), (1, 0, 2)), "perm_x2": ((0, 1, 2), (0, 2, 1)), "perm_y": ((1, 0, 2),)}


def transpose_batchmatmul(
    input: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
) -> Tensor:
    """`permute(permute(input, perm_x1) @ permute(weight, perm_x2), perm_y)` of 3-D tensors.

    After their permutations input is (batch, m, k) and weight (batch, k, n); perm_y is [1, 0, 2] by default, so that
    the result is (m, batch, n). Products are summed in float32. The device knows two permutations of each factor, and
    one of the result.
    """
    refuse(_OP, {"bias": bias, "scale": scale, "batch_split_factor": batch_split_factor})
    given = {"perm_x1": perm_x1, "perm_x2": perm_x2, "perm_y": perm_y}
    for name, perm in given.items():
        if perm is not None and tuple(perm) not in _PERMUTATIONS[name]:
            raise Unserved(
                f"the host kernel of {_OP} knows no {name}={list(perm)}",
                expected=" or ".join(str(list(known)) for known in _PERMUTATIONS[name]),
            )
    left = input if perm_x1 is None else input.permute(*perm_x1)
    right = weight if perm_x2 is None else weight.permute(*perm_x2)
    product = torch.bmm(left.float(), right.float()).to(input.dtype)
    return product.permute(*(perm_y or (1, 0, 2))).contiguous()


def swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """`silu(a) * b`, where a and b are the halves of input along `dim`."""
    if not -input.dim() <= dim < input.dim() or input.shape[dim] % 2:
        raise Unserved(f"npu_swiglu takes halves of dim={dim}, which {tuple(input.shape)} does not have")
    a, b = input.float().chunk(2, dim)
    return (torch.nn.functional.silu(a) * b).to(input.dtype)


def geglu(input: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False) -> tuple[Tensor, Tensor]:
    """`a * gelu(b)` and `gelu(b)`, where a and b are the halves of input along `dim`; with activate_left b and a. The
    gelu is that by erf with approximate 0, and that by tanh with 1."""
    only("npu_geglu", "approximate", approximate, (0, 1))
    if not -input.dim() <= dim < input.dim() or input.shape[dim] % 2:
        raise Unserved(f"npu_geglu takes halves of dim={dim}, which {tuple(input.shape)} does not have")
    a, b = reversed(input.float().chunk(2, dim)) if activate_left else input.float().chunk(2, dim)
    active = torch.nn.functional.gelu(b, approximate="tanh" if approximate else "none")
    return (a * active).to(input.dtype), active.to(input.dtype)


OPS = (
    HostOp(
        "npu_transpose_batchmatmul(Tensor input, Tensor weight, *, Tensor? bias=None, Tensor? scale=None, "
        "int[]? perm_x1=None, int[]? perm_x2=None, int[]? perm_y=None, int? batch_split_factor=1) -> Tensor",
        transpose_batchmatmul,
    ),
    HostOp("npu_swiglu(Tensor input, int dim=-1) -> Tensor", swiglu),
    HostOp(
        "npu_geglu(Tensor input, int dim=-1, int approximate=1, bool activate_left=False) -> (Tensor, Tensor)", geglu
    ),
)
