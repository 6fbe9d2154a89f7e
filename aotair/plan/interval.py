"""How much memory is needed from when to when, and where it may lie."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """`size` bytes, needed from step `first` to step `last`, both included.

    At the offset `fixed`, where there is one; else at any multiple of `alignment`, a power of two, that is one of the
    plan's alignment too.
    """

    size: int
    first: int
    last: int
    fixed: int | None = None
    alignment: int = 1


@dataclass(frozen=True)
class Columns:
    """Intervals as arrays: sizes rounded up to the plan's alignment, `fixed` offsets (-1: free), and what has to divide
    each offset: `alignment`, the plan's own, or more."""

    alignment: int
    sizes: np.ndarray
    first: np.ndarray
    last: np.ndarray
    fixed: np.ndarray
    alignments: np.ndarray

    def unit(self) -> int:
        """What divides every size, and every offset of some lowest plan."""
        own = self.alignments[self.alignments > self.alignment]
        return math.gcd(*map(int, np.concatenate((self.sizes, np.maximum(self.fixed, 0), own))))

    def scaled(self, unit: int) -> "Columns":
        """The same in other units of memory."""
        alignments = np.maximum(self.alignments // unit, 1)
        return Columns(
            max(self.alignment // unit, 1), self.sizes // unit, self.first, self.last, self.fixed // unit, alignments
        )

    @property
    def plain(self) -> bool:
        """Whether all may lie anywhere, as far as the plan's alignment goes."""
        return bool((self.fixed < 0).all() and (self.alignments == self.alignment).all())


def columns(intervals: Sequence[Interval], alignment: int) -> Columns:
    """`intervals` for a plan with this alignment."""
    rows = [
        (
            -(-i.size // alignment) * alignment,
            i.first,
            i.last,
            -1 if i.fixed is None else i.fixed,
            max(alignment, i.alignment),
        )
        for i in intervals
    ]
    return Columns(alignment, *np.array(rows, np.int64).reshape(-1, 5).T.copy())
