"""How far a tensor of some shape and strides reaches, in elements, and how one without gaps lies."""

from collections.abc import Sequence


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """From the first element to behind the last, with what lies between them; 0 where there is none."""
    return 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


def without_gaps(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor of that shape without gaps, as torch gives them."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def turned(values: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes or strides with the last two swapped: a matrix may lie row by row or column by column."""
    return (*values[:-2], *reversed(values[-2:]))
