"""Host memory that is zero and takes none until it is written to: a cache whose rows are empty."""

import math
import mmap
from collections.abc import Sequence

import torch

_LEAST = 1 << 16  # bytes from which a mapping of its own is worth it


def copies(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Copies of tensors on the host, without gaps. Of large ones that are zero throughout, memory that is fresh from
    the system; which of them are is looked up once for those that share their memory."""
    zero: dict[tuple[int, int], bool] = {}
    found = []
    for tensor in tensors:
        key = (tensor.data_ptr(), tensor.nbytes)
        if tensor.nbytes >= _LEAST and tensor.is_contiguous():
            if key not in zero:
                zero[key] = not tensor.reshape(-1).view(torch.uint8).any()
            if zero[key]:
                found.append(_mapped(tensor))
                continue
        found.append(tensor.clone(memory_format=torch.contiguous_format))
    return tuple(found)


def _mapped(like: torch.Tensor) -> torch.Tensor:
    memory = mmap.mmap(-1, like.nbytes)  # kept alive by the tensor
    return torch.frombuffer(memory, dtype=like.dtype, count=math.prod(like.shape)).view(like.shape)
