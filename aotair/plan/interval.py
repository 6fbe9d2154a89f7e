"""How much memory is needed from when to when."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """`size` bytes, needed from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int
