"""Weights of four bits as torch's kernel for the CPU reads them: in an order that depends on the processor."""

import functools
from collections.abc import Callable, Mapping, Sequence

import torch

from . import large_pages
from .base import Allocates

_aten = torch.ops.aten
GROUPS = (32, 64, 128, 256)  # of neighbours in a row with one scale: what the kernel takes
ROWS = 16  # that the number of rows has to be a multiple of


class Int4Weight(Allocates):
    """Whole numbers 0 … 15 of a weight (out, in), in memory of their own that they keep.

    They come as bytes (out, in / 2): each holds two neighbours of a row, the first in its lower four bits.
    """

    def __init__(self, weight: torch.Tensor):
        self._packed = large_pages.copied(_packed(weight))
        self.nbytes: int = self._packed.nbytes

    def fill(self, weight: torch.Tensor) -> None:
        self._packed.copy_(_packed(weight))

    def call(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Callable[[], torch.Tensor] | None:
        if len(args) != 4 or kwargs or not _fit(args[0], self._packed, args[2], args[3]):
            return None
        return functools.partial(op, args[0], self._packed, args[2], args[3])


def packed(weight: torch.Tensor) -> Int4Weight | None:
    """The weight as the kernel reads it; None where it is none that the kernel takes."""
    fits = weight.dtype == torch.uint8 and weight.dim() == 2 and weight.numel() > 0
    fits = fits and not weight.shape[0] % ROWS and not weight.shape[1] * 2 % GROUPS[0]
    return Int4Weight(weight) if fits else None


def packed_bytes(shape: Sequence[int], kind: torch.dtype) -> int:
    """What it takes beside the bytes in the file: as much."""
    return torch.Size(shape).numel() * kind.itemsize


def _packed(weight: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = _aten._convert_weight_to_int4pack_for_cpu(numbers(weight).to(torch.int32), 1)
    return made


def numbers(weight: torch.Tensor) -> torch.Tensor:
    """The numbers 0 … 15 in the bytes (out, in / 2) of a weight: uint8 (out, in)."""
    return torch.stack((weight & 15, weight >> 4), dim=2).flatten(1)


def _fit(x: object, weight: torch.Tensor, group: object, factors: object) -> bool:
    """Whether x is (rows, in), and the factors, a scale and a summand for each group, (in / group, out, 2)."""
    if not isinstance(x, torch.Tensor) or not isinstance(factors, torch.Tensor):
        return False
    if not isinstance(group, int) or group not in GROUPS:
        return False
    out, width = weight.shape[0], weight.shape[1] * 2
    there = x.dim() == 2 and x.shape[1] == width and x.is_contiguous() and x.dtype.is_floating_point
    alike = factors.dtype == x.dtype and factors.shape == (width // group, out, 2) and factors.is_contiguous()
    return there and alike and not width % group
