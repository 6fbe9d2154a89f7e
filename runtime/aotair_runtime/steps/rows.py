"""Which calls make something of rows, or choose rows by number: as steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..devices.results import meet
from .written import FLOATS, MOST, ROW, TYPES, Lies, Steps, in_order, step, written

_INDEX_SELECT, _INDEX_COPY, _SOFTMAX, _LAYER_NORM, _DYNAMIC_QUANT = 33, 34, 50, 51, 52
_REDUCED = {"mean": 48, "sum": 49}


def index_select(_: str, out: Tensor, args: Sequence[Any], given: dict[str, Any]) -> Steps | None:
    if given or len(args) != 3 or args[1] != 0 or out.numel() > MOST:
        return None
    return _chosen(_INDEX_SELECT, args[0], args[2], out) if _are_rows(args[0], args[2], out) else None


def index_copy(_: str, out: Tensor, args: Sequence[Any], given: dict[str, Any]) -> Steps | None:
    if given or len(args) != 4 or args[0] is not out or args[1] != 0 or args[3].numel() > MOST:
        return None
    return _chosen(_INDEX_COPY, out, args[2], args[3]) if _are_rows(out, args[2], args[3]) else None


def _are_rows(whole: Tensor, numbers: Tensor, some: Tensor) -> bool:
    """Whether `some` may be rows of `whole`, for each of the numbers one, and all of a row lies together."""
    fits = numbers.dim() == 1 and numbers.dtype in (torch.int64, torch.int32) and numbers.numel() > 0
    fits = fits and whole.dim() == some.dim() > 0 and whole.dtype == some.dtype and whole.numel() > 0
    fits = fits and some.shape == (len(numbers), *whole.shape[1:])
    fits = fits and whole[0].is_contiguous() and some[0].is_contiguous()
    return fits and not meet(whole, some)


def _chosen(op: int, whole: Tensor, numbers: Tensor, some: Tensor) -> Steps | None:
    """Rows by their numbers, from one place to the other."""
    target, source = (some, whole) if op == _INDEX_SELECT else (whole, some)
    if meet(target, numbers):
        return None
    rows = [Lies(one.data_ptr(), (one.stride(0) * one.itemsize,), 0) for one in (target, source)]
    by = Lies(numbers.data_ptr(), numbers.stride(), TYPES[numbers.dtype])
    nbytes = some[0].numel() * some.itemsize
    return Steps(written(op, 1, (len(numbers),), [*rows, by], 0.0, (len(whole), nbytes)), 1)


def reduced(name: str, out: Tensor, args: Sequence[Any], given: dict[str, Any]) -> Steps | None:
    if len(args) not in (2, 3) or given.pop("dtype", None) not in (None, out.dtype):
        return None
    x, dims, keep = args[0], args[1], args[2] if len(args) == 3 else given.pop("keepdim", False)
    if given or not _are_short(x, out) or not isinstance(dims, (list, tuple)) or len(dims) != 1:
        return None
    whole = out if keep else out.unsqueeze(-1)
    if not _is_last(dims[0], x) or whole.shape != (*x.shape[:-1], 1) or meet(out, x):
        return None
    return step(_REDUCED[name], x.shape, [whole.expand(x.shape), x], last=True)


def _are_short(x: Tensor, out: Tensor) -> bool:
    """Whether these are floats in rows that a thread holds, and not so many that the call is nothing beside them."""
    fits = x.dim() > 0 and 0 < x.shape[-1] <= ROW and x.numel() <= MOST * 8
    return fits and x.dtype in FLOATS and out.dtype == x.dtype


def _is_last(dim: int, x: Tensor) -> bool:
    return dim in (-1, x.dim() - 1)


def softmax(_: str, out: Tensor, args: Sequence[Any], given: dict[str, Any]) -> Steps | None:
    if given or len(args) != 3 or args[2]:
        return None
    x = args[0]
    if not _are_short(x, out) or not _is_last(args[1], x) or x.shape != out.shape or not in_order(out, [x]):
        return None
    return step(_SOFTMAX, x.shape, [out, x], last=True)


def layer_norm(_: str, out: Tensor, args: Sequence[Any], given: dict[str, Any]) -> Steps | None:
    """`aten::layer_norm` and `aten::native_layer_norm` of the last dimension, with a weight."""
    x, shape, weight, bias, eps = [*args, *(None, None, 1e-5)[max(0, len(args) - 2) :]][:5]
    factors = [one for one in (weight, bias) if one is not None]
    if given or not all(isinstance(one, Tensor) for one in factors) or type(eps) not in (int, float):
        return None
    if not _are_short(x, out) or list(shape) != [x.shape[-1]] or x.shape != out.shape:
        return None
    if any(one.shape != x.shape[-1:] or one.dtype not in FLOATS or one.stride(0) != 1 for one in factors):
        return None
    if not in_order(out, [x]) or any(meet(out, one) for one in factors):
        return None
    read = [x, *(one.expand(x.shape) for one in factors)]
    return step(_LAYER_NORM, x.shape, [out, *read], number=float(eps), whole=(len(factors) - 1, 0), last=True)


def dynamic_quant(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Steps | None:
    """`air::dynamic_quant.out`: the same bits."""
    (x,), tokens, scale = args, kwargs["tokens"], kwargs["scale"]
    fits = x.dim() == 2 and x.numel() > 0 and _are_short(x, x) and x.stride(1) == 1
    fits = fits and tokens.dtype == torch.int8 and tokens.shape == x.shape and tokens.stride(1) == 1
    fits = fits and scale.dtype == torch.float32 and scale.shape == (len(x), 1)
    if not fits or meet(tokens, x) or meet(scale, x) or meet(tokens, scale):
        return None
    if len(x) > 1 and not (tokens.stride(0) and scale.stride(0)):
        return None
    lies = [Lies(one.data_ptr(), one.stride()[:1], TYPES[one.dtype]) for one in (tokens, x, scale)]
    return Steps(written(_DYNAMIC_QUANT, 2, tuple(x.shape), lies, 0.0, (0, 0)), 1)
