"""The pages of a mapped file: how the system gets back those that nobody reads any more."""

import ctypes
import mmap
import sys

import torch

_DONT_NEED: int = getattr(mmap, "MADV_DONTNEED", -1)
_libc = ctypes.CDLL(None, use_errno=True) if _DONT_NEED >= 0 and sys.platform == "linux" else None


def give_back(tensor: torch.Tensor) -> None:
    """Let go of the pages in which a tensor alone lies, of a mapped file that nobody has written to: whoever reads it
    again reads the file again. Other memory would read as zeros afterwards. Nothing happens where the system cannot."""
    if _libc is None:
        return
    page, start = mmap.PAGESIZE, tensor.data_ptr()
    first, last = -(-start // page) * page, (start + tensor.nbytes) // page * page
    if first < last:
        _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_int(_DONT_NEED))
