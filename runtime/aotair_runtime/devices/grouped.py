"""`torch.ops.air.grouped_mm`: each group of rows meets a matrix of its own, on the CPU, as in a mixture of experts.

How many rows a group has is a number of the call, read by the kernel: shapes stay as they are, and the matrix of a
group without rows is not read.
"""

import torch
from torch import Tensor

from .results import check_out

_SCHEMA = "(Tensor x, Tensor weight, Tensor ends, Tensor? bias=None"
_library = torch.library.Library("air", "FRAGMENT")


def grouped_mm(x: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x[ends[i - 1] : ends[i]] @ weight[i] + bias[i]` for each group i; rows of no group are zero.

    x: (rows, k); weight: (groups, k, n) of its dtype; ends: (groups,) integers, where each group's rows end; bias:
    (groups, n).
    """
    return _into(x.new_empty(_size(x, weight, ends, bias)), x, weight, ends, bias)


def _grouped_mm_out(x: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None = None, *, out: Tensor) -> Tensor:
    return _into(_shape_out(x, weight, ends, bias, out=out), x, weight, ends, bias)


def _into(out: Tensor, x: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None) -> Tensor:
    start = 0
    for number, said in enumerate(ends.tolist()):
        end = min(max(said, start), x.shape[0])
        if end > start and bias is None:
            torch.mm(x[start:end], weight[number], out=out[start:end])
        elif end > start and bias is not None:
            torch.addmm(bias[number], x[start:end], weight[number], out=out[start:end])
        start = end
    out[start:].zero_()
    return out


def _size(x: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None) -> tuple[int, int]:
    """The shape of the result; raises ValueError where the arguments do not fit each other."""
    fits = x.dim() == 2 and weight.dim() == 3 and ends.dim() == 1
    fits = fits and x.shape[1] == weight.shape[1] and ends.shape[0] == weight.shape[0] and x.dtype == weight.dtype
    fits = fits and ends.dtype in (torch.int32, torch.int64)
    if fits and bias is not None:
        fits = bias.dim() == 2 and bias.shape == weight.shape[::2] and bias.dtype == x.dtype
    if not fits:
        given = ", ".join(
            "none" if one is None else f"{one.dtype} {list(one.shape)}" for one in (x, weight, ends, bias)
        )
        raise ValueError(
            f"grouped_mm takes x (rows, k), weight (groups, k, n), ends (groups,), bias (groups, n): {given}"
        )
    return x.shape[0], weight.shape[2]


def _shape(x: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None = None) -> Tensor:
    return x.new_empty(_size(x, weight, ends, bias))


def _shape_out(x: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None = None, *, out: Tensor) -> Tensor:
    return check_out("grouped_mm", out, _size(x, weight, ends, bias), x.dtype)


_library.define(f"grouped_mm{_SCHEMA}) -> Tensor")
_library.define(f"grouped_mm.out{_SCHEMA}, *, Tensor(a!) out) -> Tensor(a!)")
for _name, _kernel, _meta in (("grouped_mm", grouped_mm, _shape), ("grouped_mm.out", _grouped_mm_out, _shape_out)):
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _meta, "Meta")
OP = torch.ops.air.grouped_mm.default
