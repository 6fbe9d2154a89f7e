"""A matrix of weights in the blocks that oneDNN's kernels read, in memory of its own that stays."""

from collections.abc import Sequence
from ctypes import c_void_p

import torch

from . import large_pages
from .onednn_library import Kept, Library

PROBE = 64  # rows for which a layout is asked: it is the same for all
_MOST_PADDED = 1.5  # times the weight: narrow ones are padded to whole blocks


def bytes_in(layout: tuple[c_void_p, int] | None, shape: Sequence[int], kind: torch.dtype) -> int:
    """What a weight takes in a layout; 0 where there is none, or it pads the weight by much."""
    nbytes = layout[1] if layout is not None else 0
    return nbytes if nbytes <= _MOST_PADDED * torch.Size(shape).numel() * kind.itemsize else 0


class BlockedWeight:
    """The weight (out, in) of a linear layer, in blocks that depend on the processor."""

    def __init__(self, kept: Kept, kind: int, layout: tuple[c_void_p, int], weight: torch.Tensor, dims: int = 2):
        """`kept` holds the description in `layout`, of so many dimensions, and goes with this; `kind` is what oneDNN
        calls the dtype."""
        self._kept, self.kind, self._dims = kept, kind, dims
        self.desc, self.nbytes = layout
        self.lies = kept.library.blocks(self.desc, dims)
        self._packed = large_pages.memory(self.nbytes)
        self.memory = kept.memory(self.desc, self._packed.data_ptr())
        self._shape, self._dtype = weight.shape, weight.dtype
        self.fill(weight)

    @property
    def address(self) -> int:
        return self._packed.data_ptr()

    @property
    def library(self) -> Library:
        return self._kept.library

    def fill(self, weight: torch.Tensor) -> None:
        """Take the values of another weight of that shape, at the same address."""
        if weight.shape != self._shape or weight.dtype != self._dtype or weight.device.type != "cpu":
            raise ValueError(f"not a weight of {self._dtype} {list(self._shape)}")
        before = self._dims - 2
        sizes = (*(1,) * before, *weight.shape[::-1])
        strides = (*(weight.numel(),) * before, *weight.stride()[::-1])
        self.library.rearrange(weight, sizes, strides, self.kind, self.desc, self.memory)
