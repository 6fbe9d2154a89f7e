"""`torch.ops.air.grouped_int_mm`: each group of rows of int8 meets a matrix of its own, summed exactly, on the CPU.

As in `air::grouped_mm`, how many rows a group has is a number of the call, and the matrix of a group without rows is
not read. The work is done by torch's kernel, which cuts sums off on processors without VNNI: `artifact.requirements`
refuses these.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from .results import check_out

_SCHEMA = "(Tensor x, Tensor weight, Tensor ends"
_library = torch.library.Library("air", "FRAGMENT")


def grouped_int_mm(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """`x[ends[i - 1] : ends[i]] @ weight[i]` as int32 for each group i; rows of no group are zero.

    x: (rows, k) int8; weight: (groups, k, n) int8, fastest as a turned view of (groups, n, k); ends: (groups,)
    integers, where each group's rows end.
    """
    return _into(_empty(x, weight, ends), x, weight, ends)


def _grouped_int_mm_out(x: Tensor, weight: Tensor, ends: Tensor, *, out: Tensor) -> Tensor:
    return _into(_empty_out(x, weight, ends, out=out), x, weight, ends)


def _into(out: Tensor, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    if x.shape[1] == 1:  # torch's kernel is wrong for rows of one number
        x, weight = pad(x, (0, 1)), pad(weight, (0, 0, 0, 1))
    start = 0
    for number, said in enumerate(ends.tolist()):
        end = min(max(said, start), x.shape[0])
        if end > start:
            _product(x[start:end], weight[number], out[start:end])
        start = end
    out[start:].zero_()
    return out


def _product(x: Tensor, weight: Tensor, out: Tensor) -> None:
    if out.is_contiguous():  # torch's kernel takes no other
        torch._int_mm(x, weight, out=out)
    else:
        out.copy_(torch._int_mm(x, weight))


def _size(x: Tensor, weight: Tensor, ends: Tensor) -> tuple[int, int]:
    """The shape of the result; raises ValueError where the arguments do not fit each other."""
    fits = x.dim() == 2 and weight.dim() == 3 and ends.dim() == 1
    fits = fits and x.shape[1] == weight.shape[1] and ends.shape[0] == weight.shape[0]
    fits = fits and x.dtype == weight.dtype == torch.int8 and ends.dtype in (torch.int32, torch.int64)
    if not fits:
        given = ", ".join(f"{one.dtype} {list(one.shape)}" for one in (x, weight, ends))
        raise ValueError(
            f"grouped_int_mm takes int8 x (rows, k), int8 weight (groups, k, n), integers ends (groups,): {given}"
        )
    return x.shape[0], weight.shape[2]


def _empty(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(_size(x, weight, ends), dtype=torch.int32)


def _empty_out(x: Tensor, weight: Tensor, ends: Tensor, *, out: Tensor) -> Tensor:
    return check_out("grouped_int_mm", out, _size(x, weight, ends), torch.int32)


_library.define(f"grouped_int_mm{_SCHEMA}) -> Tensor")
_library.define(f"grouped_int_mm.out{_SCHEMA}, *, Tensor(a!) out) -> Tensor(a!)")
for _name, _kernel, _meta in (
    ("grouped_int_mm", grouped_int_mm, _empty),
    ("grouped_int_mm.out", _grouped_int_mm_out, _empty_out),
):
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _meta, "Meta")
OP = torch.ops.air.grouped_int_mm.default
