"""`torch.ops.air.linear_int8`: a product of floats with a weight of int8, on the CPU.

Few rows are multiplied by torch's kernel, which reads the weight as it lies. That kernel takes for granted what it is
called with: rows of whole vectors at addresses of such. Anything else is multiplied as floats are.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from .results import check_out, meet

MOST_ROWS = 16  # from here on the kernel is slower than a product of floats made of the weight: `benchmarks.packed`
WIDTH = 32  # that the length of a row has to be a multiple of
_ADDRESS = 16  # bytes that an address has to be a multiple of
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
    _out(x, weight, scale, out=out)
    return out.copy_(linear_int8(x, weight, scale))


def prepared(args: Sequence[object], kwargs: Mapping[str, object]) -> Callable[[], object] | None:
    """A call of `air::linear_int8.out` for addresses that stay; None where the op itself makes it."""
    if len(args) != 3 or kwargs.keys() != {"out"}:
        return None
    tensors = [one for one in (*args, kwargs["out"]) if isinstance(one, Tensor)]
    if len(tensors) != 4:
        return None
    x, weight, scale, out = tensors
    _out(x, weight, scale, out=out)
    if not _fits(x, weight, scale) or any(meet(out, one) for one in (x, weight, scale)):
        return None
    return functools.partial(_into, x, weight, scale, out)


def _into(x: Tensor, weight: Tensor, scale: Tensor, out: Tensor) -> None:
    out.copy_(_aten._weight_int8pack_mm(x, weight, scale))


def _fits(x: Tensor, weight: Tensor, scale: Tensor) -> bool:
    """Whether a call is one that torch's kernel may be given, and is fast in."""
    fits = x.dtype == torch.bfloat16 and 0 < len(x) <= MOST_ROWS and weight.numel() > 0 and not x.shape[1] % WIDTH
    return fits and all(one.is_contiguous() and not one.data_ptr() % _ADDRESS for one in (x, weight, scale))


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


def _out(x: Tensor, weight: Tensor, scale: Tensor, *, out: Tensor) -> Tensor:
    _check(x, weight, scale)
    return check_out("linear_int8", out, (x.shape[0], weight.shape[0]), x.dtype)


_SCHEMA = "(Tensor x, Tensor weight, Tensor scale"
_library.define(f"linear_int8{_SCHEMA}) -> Tensor")
_library.define(f"linear_int8.out{_SCHEMA}, *, Tensor(a!) out) -> Tensor(a!)")
for _name, _kernel, _meta in (
    ("linear_int8", linear_int8, _empty),
    ("linear_int8.out", _linear_int8_out, _out),
):
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _meta, "Meta")
OP = torch.ops.air.linear_int8.default
