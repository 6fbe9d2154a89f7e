"""May a result be written where it was planned?"""

from collections.abc import Sequence

import torch
from torch import Tensor


def check_out(op: str, out: Tensor, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Gives `out`; raises ValueError where it has another shape or dtype than what `op` makes."""
    if tuple(out.shape) != tuple(size) or out.dtype != dtype:
        raise ValueError(f"{op} makes {dtype} {list(size)}, and out is {out.dtype} {list(out.shape)}")
    return out
