"""Host memory that is zero and takes none until it is written to: an arena, or a cache whose rows are empty."""

import mmap
from collections.abc import Sequence

import torch

_LEAST = 1 << 16  # bytes from which a mapping of its own is worth it


def memory(nbytes: int) -> torch.Tensor:
    """Bytes that are zero, so that nothing of this process can be read in them, and that cannot be made more. Raises
    RuntimeError, as torch's own allocator does, where the system has none left."""
    return torch.frombuffer(mapping(nbytes), dtype=torch.uint8)[:nbytes]  # which keeps it alive


def mapping(nbytes: int) -> mmap.mmap:
    """The same as the system gives it: its own, not that of copies of the process too."""
    try:
        return mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise RuntimeError(f"can't allocate memory: {nbytes:,} bytes ({error.strerror})") from None


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
    return memory(like.nbytes).view(like.dtype).view(like.shape)
