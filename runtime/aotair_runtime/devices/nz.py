"""Weights as Ascend's matrix unit reads them: in NZ, blocks of 16 rows by 32 bytes with zeros beside the matrix."""

import math
from collections.abc import Sequence
from typing import Protocol

import torch

from .base import Seen

_ROWS, _BYTES = 16, 32  # of a block
_PACKED = (torch.float16, torch.bfloat16, torch.int8)


class Casts(Protocol):
    """The vendor's calls for tensors in formats of its own."""

    def empty_nz(self, shape: Sequence[int], kind: torch.dtype, device: torch.device) -> torch.Tensor:
        """New memory for a tensor in NZ."""

    def to_nz(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor with a storage of its own in NZ, in new memory. Raises RequirementError where the
        vendor leaves them as they are."""

    def copy_whole(self, into: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copy the bytes of one tensor in NZ over those of another of that shape."""

    def give_back(self) -> None:
        """Let the allocator give back what it took for a cast, so that the next takes no more beside it."""


class NzWeight(Seen):
    """A weight in NZ, in memory of its own on a device that it keeps."""

    def __init__(self, weight: torch.Tensor, device: torch.device, casts: Casts):
        self._casts = casts
        # First: what a cast takes beside it is given back whole, and lies in nobody's way.
        self._packed = casts.empty_nz(weight.shape, weight.dtype, device)
        self.nbytes: int = self._packed.untyped_storage().nbytes()
        self.fill(weight)

    def fill(self, weight: torch.Tensor) -> None:
        """Take the values of another weight of that shape, at the same addresses."""
        plain = torch.empty(weight.shape, dtype=weight.dtype, device=self._packed.device)  # the vendor casts no views
        plain.copy_(weight)
        self._casts.copy_whole(self._packed, self._casts.to_nz(plain))
        del plain
        self._casts.give_back()

    def seen(self, plain: torch.Tensor) -> torch.Tensor | None:
        seen = self._packed if plain.stride() == self._packed.stride() else self._packed.mT
        return seen if seen.shape == plain.shape else None


def packs(kind: torch.dtype) -> bool:
    """Whether weights of a dtype can be kept so."""
    return kind in _PACKED


def packed_bytes(shape: Sequence[int], kind: torch.dtype) -> int:
    """What a weight takes in NZ: whole blocks."""
    *lead, rows, columns = shape
    width = _BYTES // kind.itemsize
    return math.prod(lead) * -(-rows // _ROWS) * -(-columns // width) * _ROWS * _BYTES
