"""What a collective gives where all ranks have the same numbers: of which one is there, to try an op on."""

import torch
from torch import Tensor


class AlikeRanks:
    """`size` ranks, of which this is the first."""

    number = 0

    def __init__(self, size: int):
        self.size = size

    def all_reduce(self, x: Tensor, reduce: str) -> None:
        if reduce == "sum":
            x.mul_(self.size)
        elif reduce == "product":
            x.pow_(self.size)

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        out.copy_(torch.cat([x] * self.size))

    def reduce_scatter(self, out: Tensor, x: Tensor, reduce: str) -> None:
        out.copy_(x.chunk(self.size)[self.number])
        self.all_reduce(out, reduce)

    def all_to_all(self, out: Tensor, x: Tensor) -> None:
        out.copy_(torch.cat([x.chunk(self.size)[self.number]] * self.size))

    def broadcast(self, x: Tensor, root: int) -> None:
        """All have that already."""
