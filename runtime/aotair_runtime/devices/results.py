"""May a result be written where it was planned?"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..format.extents import reach


def check_out(op: str, out: Tensor, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Gives `out`; raises ValueError where it has another shape or dtype than what `op` makes."""
    if tuple(out.shape) != tuple(size) or out.dtype != dtype:
        raise ValueError(f"{op} makes {dtype} {list(size)}, and out is {out.dtype} {list(out.shape)}")
    return out


def meet(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors may share memory: each begins before the other's last number ends."""
    first, start = one.data_ptr(), other.data_ptr()
    return first < start + _span(other) and start < first + _span(one)


def has_no_gaps(tensor: Tensor) -> bool:
    """Whether it has a number for each place of its memory: it is contiguous with its dimensions in another order."""
    wanted = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride != wanted:
            return False
        wanted *= size
    return True


def _span(tensor: Tensor) -> int:
    """The bytes from a tensor's first number to the end of its last."""
    return reach(tensor.shape, tensor.stride()) * tensor.itemsize
