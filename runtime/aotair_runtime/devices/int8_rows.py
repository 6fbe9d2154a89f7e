"""`torch.ops.air.linear_int8`: a product of floats with a weight of int8, on the CPU.

Few rows are multiplied by torch's kernel, which reads the weight as it lies. That kernel takes for granted what it is
called with: rows of whole vectors at addresses of such. A load copies weights to such addresses; what else is not so is
multiplied as floats are.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import large_pages
from .base import Allocates
from .results import check_out, meet

MOST_ROWS = 16  # above, the kernel is slower than a product of floats made of the weight: `benchmarks.packed`
WIDTH = 32  # that the length of a row has to be a multiple of
PACKED = "air::linear_int8.out"
_ADDRESS = 32  # bytes that addresses have to be a multiple of
_aten = torch.ops.aten
_library = torch.library.Library("air", "FRAGMENT")


def linear_int8(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """`(x @ weight.T) * scale`, in the dtype of x.

    x: (rows, k), floats; weight: (n, k) int8; scale: (n,) of the dtype of x.
    """
    _check(x, weight, scale)
    if _fits(x, weight, scale):
        made: Tensor = _aten._weight_int8pack_mm(x, weight, scale)
        return made
    return in_floats(x, weight, scale)


def in_floats(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """The same as a product of floats, whose result is scaled."""
    return torch.nn.functional.linear(x, weight.to(x.dtype)) * scale


def _linear_int8_out(x: Tensor, weight: Tensor, scale: Tensor, *, out: Tensor) -> Tensor:
    check(x, weight, scale, out=out)
    return out.copy_(linear_int8(x, weight, scale))


class Int8Rows(Allocates):
    """A weight (n, k) as it is, at an address that the kernel takes, which that in a file need not be."""

    def __init__(self, weight: Tensor):
        self.rows = large_pages.copied(weight)
        self.nbytes: int = self.rows.nbytes

    def fill(self, weight: Tensor) -> None:
        self.rows.copy_(weight)

    def call(
        self, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Callable[[], object] | None:
        if op.name() != PACKED or len(args) != 3 or kwargs.keys() != {"out"}:
            return None
        x, _, scale = args
        try:
            out = check(x, self.rows, scale, out=kwargs["out"])
        except ValueError:
            return None
        fits = _fits(x, self.rows, scale) and not any(meet(out, one) for one in (x, scale))
        if fits:
            return functools.partial(_into, x, self.rows, scale, out)
        return functools.partial(op, x, self.rows, scale, out=out)


def packed(weight: Tensor) -> Int8Rows | None:
    """The weight as the kernel reads it; None where it is none that the kernel takes."""
    fits = weight.dtype == torch.int8 and weight.dim() == 2 and weight.numel() > 0 and not weight.shape[1] % WIDTH
    return Int8Rows(weight) if fits and weight.is_contiguous() else None


def packed_bytes(shape: Sequence[int]) -> int:
    """What it takes beside the bytes in the file."""
    return torch.Size(shape).numel() if len(shape) == 2 and not shape[1] % WIDTH else 0


def _into(x: Tensor, weight: Tensor, scale: Tensor, out: Tensor) -> None:
    out.copy_(_aten._weight_int8pack_mm(x, weight, scale))


def _fits(x: Tensor, weight: Tensor, scale: Tensor) -> bool:
    """Whether a call is one that torch's kernel may be given, and is fast in."""
    fits = x.dtype == torch.bfloat16 and 0 < len(x) <= MOST_ROWS and weight.numel() > 0 and not x.shape[1] % WIDTH
    fits = fits and not x.data_ptr() % _ADDRESS and not weight.data_ptr() % _ADDRESS
    return fits and all(one.is_contiguous() for one in (x, weight, scale))


def _check(x: Tensor, weight: Tensor, scale: Tensor) -> None:
    """Raises ValueError where the arguments do not fit each other."""
    fits = x.dim() == weight.dim() == 2 and x.dtype.is_floating_point and weight.dtype == torch.int8
    fits = fits and x.shape[1] == weight.shape[1] and scale.dtype == x.dtype and scale.shape == weight.shape[:1]
    if not fits:
        said = ", ".join(f"{one.dtype} {list(one.shape)}" for one in (x, weight, scale))
        raise ValueError(f"linear_int8 takes floats x (rows, k), int8 weight (n, k), and scale (n,) like x: {said}")


def _empty(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    _check(x, weight, scale)
    return x.new_empty(x.shape[0], weight.shape[0])


def check(x: Tensor, weight: Tensor, scale: Tensor, *, out: Tensor) -> Tensor:
    """Gives `out`; raises ValueError where the arguments do not fit each other, or it is not as they make it."""
    _check(x, weight, scale)
    return check_out("linear_int8", out, (x.shape[0], weight.shape[0]), x.dtype)


_SCHEMA = "(Tensor x, Tensor weight, Tensor scale"
_library.define(f"linear_int8{_SCHEMA}) -> Tensor")
_library.define(f"linear_int8.out{_SCHEMA}, *, Tensor(a!) out) -> Tensor(a!)")
for _name, _kernel, _meta in (
    ("linear_int8", linear_int8, _empty),
    ("linear_int8.out", _linear_int8_out, check),
):
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _meta, "Meta")
OP = torch.ops.air.linear_int8.default
