"""Memory between pages that nobody may touch: a tensor in it ends where the forbidden page begins."""

import ctypes
import mmap

import torch

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Guarded:
    """`room` bytes with a forbidden page before and behind; what lies there is written anew for each tensor."""

    def __init__(self, room: int = 1 << 16):
        self.room = -(-room // PAGE) * PAGE
        self._map = mmap.mmap(-1, self.room + 2 * PAGE)
        self._all = torch.frombuffer(self._map, dtype=torch.uint8)
        for start in (0, PAGE + self.room):
            assert _libc.mprotect(self._all.data_ptr() + start, PAGE, 0) == 0
        self._bytes = self._all[PAGE : PAGE + self.room]
        self._used = 0

    def place(self, value: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
        """A tensor of that shape whose bytes, those of `value` without gaps, end at the forbidden page."""
        nbytes = value.numel() * value.element_size()
        assert nbytes <= self.room
        self._used = nbytes
        self._bytes.fill_(0xA5)
        start = self.room - nbytes
        mine = self._bytes[start:]
        mine.copy_(value.reshape(-1).view(torch.uint8))
        storage = torch._C._construct_storage_from_data_pointer(mine.data_ptr(), torch.device("cpu"), nbytes)
        return torch.empty(0, dtype=value.dtype).set_(storage, 0, shape, strides)

    def bytes(self) -> torch.Tensor:
        """A copy of the tensor's bytes."""
        return self._bytes[self.room - self._used :].clone()

    def restore(self, before: torch.Tensor) -> None:
        """Write the tensor's bytes as `bytes` gave them."""
        self._bytes[self.room - self._used :].copy_(before)

    def is_clean(self) -> bool:
        """Whether nothing was written before the tensor."""
        return bool((self._bytes[: self.room - self._used] == 0xA5).all())
