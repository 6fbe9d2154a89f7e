"""How does each kind of device allocate memory? Known without one, so that a build can promise what a load takes."""

from collections.abc import Sequence
from dataclasses import dataclass

_MIB = 1 << 20
_SEGMENTS = (
    "the allocator rounds a block to {}, and reserves 2 MiB for blocks up to 1 MiB, 20 MiB for one below 10 MiB, and "
    "whole 2 MiB beyond"
)


@dataclass(frozen=True)
class Allocator:
    """`block`: bytes; it hands out multiples. `padding`: bytes that it adds to each block. `segments`: it reserves
    memory from the device in larger pieces. `warms_up`: instructions run once before they are captured, which takes
    memory for a while. `says` is all that in words."""

    says: str
    block: int = 1
    padding: int = 0
    segments: bool = False
    warms_up: bool = False

    def reserved(self, nbytes: int) -> int:
        """What it reserves at most for a block of `nbytes`.

        Source: torch/csrc and c10/cuda/CUDACachingAllocator.cpp (kSmallSize, kSmallBuffer, kLargeBuffer,
        kMinLargeAlloc, kRoundLarge), from which torch_npu's allocator is derived.
        """
        if not self.segments or not nbytes:
            return nbytes
        taken = _round_up(nbytes + self.padding, self.block)
        if taken <= _MIB:
            return 2 * _MIB
        return 20 * _MIB if taken < 10 * _MIB else _round_up(taken, 2 * _MIB)

    def reserved_apart(self, sizes: Sequence[int]) -> int:
        """What it reserves for a block of each of these sizes, one after the other: each takes the smallest room that
        segments for small ones, or those for all others, have left, and a new segment where there is none."""
        if not self.segments:
            return sum(sizes)
        total, rooms = 0, {True: list[int](), False: list[int]()}
        for nbytes in filter(None, sizes):
            taken, segment = _round_up(nbytes + self.padding, self.block), self.reserved(nbytes)
            small = taken <= _MIB
            fits = [room for room in rooms[small] if room >= taken]
            room = min(fits, default=segment)
            if fits:
                rooms[small].remove(room)
            else:
                total += segment
            if room - taken > (0 if small else _MIB):  # what is left of others is not cut off
                rooms[small].append(room - taken)
        return total


ALLOCATORS = {
    "cpu": Allocator("host memory is allocated as promised"),
    "cuda": Allocator(_SEGMENTS.format("512 bytes"), 512, segments=True, warms_up=True),
    "npu": Allocator(_SEGMENTS.format("512 bytes after adding 32"), 512, 32, segments=True, warms_up=True),
}


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
