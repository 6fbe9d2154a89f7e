"""Casts, rotations, and writes into caches.

Source: the documentation of torch_npu's `npu_dtype_cast`, `npu_rotary_mul`, `npu_scatter_nd_update`, `scatter_update`.
"""

import torch
from torch import Tensor

from ..registry import HostOp, Unserved, only


def dtype_cast(input: Tensor, dtype: torch.dtype) -> Tensor:
    """input in another dtype; a copy, also where it is the same."""
    return input.to(dtype, copy=True)


def rotary_mul(
    input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """`x * r1 + rotate(x) * r2`: with "half" the second half of the last dimension, negated, and the first; with
    "interleave" each odd element, negated, and the even one before it. r1 (cosines) and r2 (sines) are broadcast. Where
    a matrix `rotate` is given, `x @ rotate` stands for either."""
    only("npu_rotary_mul", "rotary_mode", rotary_mode, ("half", "interleave"))
    wide = input.float()
    if rotate is not None:
        if rotate.dim() != 2:
            raise Unserved(f"npu_rotary_mul takes a rotate of two dimensions, not {rotate.dim()}")
        turned = wide @ rotate.float()
    elif rotary_mode == "half":
        first, second = wide.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
    else:
        turned = torch.stack((-wide[..., 1::2], wide[..., ::2]), -1).flatten(-2)
    return (wide * r1.float() + turned * r2.float()).to(input.dtype)


def scatter_nd_update_(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """`input[indices[i]] = updates[i]` in place: the last dimension of indices (..., k) is an index into the first k
    dimensions of input, updates is (..., *input.shape[k:])."""
    return input.index_put_(tuple(indices.long().unbind(-1)), updates)


def scatter_nd_update(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """`scatter_nd_update_` on a copy."""
    return scatter_nd_update_(input.clone(), indices, updates)


def scatter_update_(input: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """In place, for each i of the first dimension of updates: its slice goes to `axis` of input[i] from indices[i] on.

    indices is (batch,), or (batch, 2) with the row of input first; axis is not the first.
    """
    if not -input.dim() <= axis < input.dim() or not axis % input.dim():
        raise Unserved(f"the host kernel of scatter_update knows no axis={axis} of {input.dim()} dimensions")
    if input.device.type == "meta":
        return input
    axis %= input.dim()
    for number, place in enumerate(indices.tolist()):
        row, start = place if isinstance(place, list) else (number, place)
        input[row].narrow(axis - 1, start, updates.shape[axis]).copy_(updates[number])
    return input


def scatter_update(input: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """`scatter_update_` on a copy."""
    return scatter_update_(input.clone(), indices, updates, axis)


OPS = (
    HostOp("_npu_dtype_cast(Tensor input, ScalarType dtype) -> Tensor", dtype_cast),
    HostOp(
        'npu_rotary_mul(Tensor input, Tensor r1, Tensor r2, str rotary_mode="half", Tensor? rotate=None) -> Tensor',
        rotary_mul,
    ),
    HostOp("npu_scatter_nd_update(Tensor input, Tensor indices, Tensor updates) -> Tensor", scatter_nd_update),
    HostOp(
        "npu_scatter_nd_update_(Tensor(a!) input, Tensor indices, Tensor updates) -> Tensor(a!)",
        scatter_nd_update_,
        functional="npu_scatter_nd_update",
    ),
    HostOp("scatter_update(Tensor input, Tensor indices, Tensor updates, int axis) -> Tensor", scatter_update),
    HostOp(
        "scatter_update_(Tensor(a!) input, Tensor indices, Tensor updates, int axis) -> Tensor(a!)",
        scatter_update_,
        functional="scatter_update",
    ),
)
