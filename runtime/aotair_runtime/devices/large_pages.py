"""Memory of the host in pages of 2 MiB, for what every call reads from one end to the other: packed weights.

The processor finds a page of memory by tables that it keeps for a few pages only. Weights of hundreds of MB in pages of
4 KiB are read at two thirds of the speed, and each page costs a fault when it is first written. Linux gives large pages
to whom asks for them, whole and in line; where it has none, nothing is different but the speed.
"""

import contextlib
import mmap
from collections.abc import Iterator
from contextvars import ContextVar

import torch

from .zeros import mapping

PAGE = 2 << 20
_LINE = 64  # what addresses are a multiple of
_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)


class _Room:
    """Memory that is handed out piece by piece, and given back when nobody holds a piece any more."""

    def __init__(self, nbytes: int):
        whole = mapping(nbytes + PAGE)
        if _ADVICE is not None:
            with contextlib.suppress(OSError):  # of a system without large pages
                whole.madvise(_ADVICE)
        memory = torch.frombuffer(whole, dtype=torch.uint8)
        start = -memory.data_ptr() % PAGE
        self._left = memory[start : start + nbytes]

    def take(self, nbytes: int) -> torch.Tensor | None:
        if nbytes > self._left.numel():
            return None
        taken, self._left = self._left[:nbytes], self._left[-(-nbytes // _LINE) * _LINE :]
        return taken


_room: ContextVar[_Room | None] = ContextVar("room", default=None)


@contextlib.contextmanager
def room(sizes: list[int]) -> Iterator[None]:
    """Within the block, `memory` of these sizes lies in one mapping of large pages, where that is worth a page."""
    nbytes = sum(-(-size // _LINE) * _LINE for size in sizes)
    token = _room.set(_Room(nbytes) if nbytes >= PAGE else None)
    try:
        yield
    finally:
        _room.reset(token)


def memory(nbytes: int) -> torch.Tensor:
    """Bytes on the host, at an address that 64 divides. Raises RuntimeError where the system has none left."""
    found = _room.get()
    taken = found.take(nbytes) if found is not None else None
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu") if taken is None else taken


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor without gaps in such memory."""
    return memory(tensor.nbytes).view(tensor.dtype).view(tensor.shape).copy_(tensor)
