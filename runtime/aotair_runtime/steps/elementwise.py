"""Which calls make numbers of numbers, or copy them: as steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..devices.results import meet
from . import library
from .written import FLOATS, MOST, TYPES, Steps, in_order, step

_COPY, _SQRT, _RSQRT, _RECIPROCAL, _SQUARE, _TANH, _GELU_ERF, _GELU_TANH = 0, 3, 4, 5, 6, 8, 12, 13
_SUB, _MUL, _DIV, _WHERE = 15, 16, 17, 32
OF_ONE: Mapping[str, int] = {
    "neg": 1, "abs": 2, "sqrt": _SQRT, "rsqrt": _RSQRT, "reciprocal": _RECIPROCAL, "square": _SQUARE, "exp": 7,
    "tanh": _TANH, "sigmoid": 9, "silu": 10, "relu": 11,
}  # fmt: skip
OF_TWO: Mapping[str, int] = {"add": 14, "sub": _SUB, "mul": _MUL, "div": _DIV, "maximum": 18, "minimum": 19}
_POWERS = {2: _SQUARE, 0.5: _SQRT, -0.5: _RSQRT, -1: _RECIPROCAL}
_GELUS = {"none": _GELU_ERF, "tanh": _GELU_TANH}
_SLOW = frozenset({_TANH, _GELU_TANH})  # by torch: half as fast or less, with any number of numbers (`joined`)


def copy(_: str, out: Tensor, args: Sequence[Any], given: dict[str, Any]) -> Steps | None:
    if given or len(args) != 2 or not isinstance(args[1], Tensor):
        return None
    return _pointwise(_COPY, out, args[1:]) if out.dtype in FLOATS and args[1].dtype in TYPES else None


def of_one(name: str, out: Tensor, args: Sequence[Any], given: dict[str, Any]) -> Steps | None:
    op = _GELUS.get(given.pop("approximate", "none")) if name == "gelu" else OF_ONE[name]
    return None if given or len(args) != 1 or op is None else _numbers(op, out, args)


def power(_: str, out: Tensor, args: Sequence[Any], given: dict[str, Any]) -> Steps | None:
    if given or len(args) != 2 or type(args[1]) not in (int, float) or args[1] not in _POWERS:
        return None
    return _numbers(_POWERS[args[1]], out, args[:1])


def of_two(name: str, out: Tensor, args: Sequence[Any], given: dict[str, Any]) -> Steps | None:
    if given.pop("alpha", 1) != 1 or given or len(args) != 2:
        return None
    return _numbers(OF_TWO[name], out, args)


def _numbers(op: int, out: Tensor, args: Sequence[Any]) -> Steps | None:
    """A number of the result from one of each argument, where torch computes them in float32 too."""
    if not all(isinstance(one, Tensor) or type(one) in (int, float) for one in args) or not _as_wide(out, args):
        return None
    kind = args[0].dtype if len(args) == 1 else torch.result_type(*args)
    if op == _SUB and any(isinstance(one, Tensor) and one.dtype == torch.bool for one in args):
        return None  # torch refuses it
    narrow = kind != torch.float32
    if kind not in FLOATS or out.dtype != kind:
        return None
    if narrow and any(isinstance(one, Tensor) and one.dtype != kind for one in args):
        return None  # torch rounds it first
    return _pointwise(op, out, args)


def _as_wide(out: Tensor, args: Sequence[Any]) -> bool:
    """Whether the result has the shape that torch gives it, with a tensor among the arguments."""
    shapes = [one.shape for one in args if isinstance(one, Tensor)]
    if not shapes or max(map(len, shapes)) != out.dim():
        return False
    for dim, size in enumerate(reversed(out.shape), 1):
        sizes = {shape[-dim] for shape in shapes if len(shape) >= dim}
        if not sizes <= {1, size} or size not in sizes:
            return False
    return True


def _pointwise(op: int, out: Tensor, args: Sequence[Any]) -> Steps | None:
    if out.numel() > MOST and not (op in _SLOW and library.is_wide()):
        return None
    # Torch rounds what is added to halves, and not what they are times.
    kind = torch.float32 if op in (_MUL, _DIV) else out.dtype
    kept = [one if isinstance(one, Tensor) else torch.tensor(float(one), dtype=kind, device="cpu") for one in args]
    try:
        read = [one.expand(out.shape) for one in kept]
    except RuntimeError:
        return None
    if not all(one.dtype in TYPES for one in read) or not in_order(out, read):
        return None
    made = tuple(one for one, arg in zip(kept, args) if one is not arg)
    return step(op, out.shape, [out, *read], kept=made)


def cat(_: str, out: Tensor, args: Sequence[Any], given: dict[str, Any]) -> Steps | None:
    """A copy for each part."""
    dim = args[1] if len(args) > 1 else given.pop("dim", 0)
    parts = args[0]
    if (
        given
        or not all(isinstance(one, Tensor) for one in parts)
        or any(one.dtype != out.dtype or one.dim() != out.dim() for one in parts)
        or not out.dim()
    ):
        return None
    if sum(one.shape[dim] for one in parts) != out.shape[dim] or any(meet(one, out) for one in parts):
        return None
    made, start = list[Steps | None](), 0
    for one in parts:
        place = out.narrow(dim, start, one.shape[dim])
        start += one.shape[dim]
        if one.numel():
            made.append(_pointwise(_COPY, place, [one]) if place.shape == one.shape and out.dtype in FLOATS else None)
    return _all(made)


def _all(made: Sequence[Steps | None]) -> Steps | None:
    whole = Steps(b"", 0)
    for one in made:
        if one is None:
            return None
        whole += one
    return whole if whole.count else None


def where(_: str, out: Tensor, args: Sequence[Any], given: dict[str, Any]) -> Steps | None:
    if given or len(args) != 3 or not all(isinstance(one, Tensor) for one in args) or out.numel() > MOST:
        return None
    if args[0].dtype != torch.bool or any(one.dtype != out.dtype for one in args[1:]) or out.itemsize > 8:
        return None
    if not _as_wide(out, args):
        return None
    read = [one.expand(out.shape) for one in args]
    return step(_WHERE, out.shape, [out, *read], whole=(out.itemsize, 0)) if in_order(out, read) else None
