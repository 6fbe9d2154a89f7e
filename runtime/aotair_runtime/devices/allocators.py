"""How does each kind of device allocate memory? Known without one, so that a build can promise what a load takes."""

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


ALLOCATORS = {
    "cpu": Allocator("host memory is allocated as promised"),
    "cuda": Allocator(_SEGMENTS.format("512 bytes"), 512, segments=True, warms_up=True),
    "npu": Allocator(_SEGMENTS.format("512 bytes after adding 32"), 512, 32, segments=True, warms_up=True),
}


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
