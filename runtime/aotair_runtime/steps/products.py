"""Which products with a weight of int8 have few rows: as steps."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..devices import int8_rows
from . import library
from .written import FLOATS, MOST_ROWS, MOST_WIDE, TYPES, Lies, Steps, are_apart, written

_LINEAR_INT8 = 80


def linear_int8(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Steps | None:
    """`air::linear_int8.out` of few rows."""
    try:
        out = int8_rows.check(*args, **kwargs)
    except (ValueError, TypeError):
        return None  # the op says what does not fit
    x, weight, scale = args
    (rows, width), n = x.shape, len(weight)
    fits = 0 < rows <= MOST_ROWS and rows * width <= MOST_WIDE and n > 0 and width > 0
    fits = fits and library.is_wide() and x.dtype in FLOATS and x.stride(1) == weight.stride(1) == out.stride(1) == 1
    if not fits or not are_apart(out, args):
        return None
    lies = [Lies(one.data_ptr(), one.stride()[:1], TYPES[one.dtype]) for one in (out, x, weight, scale)]
    return Steps(written(_LINEAR_INT8, 1, (n, rows, width), lies, 0.0, (0, 0)), 1)
