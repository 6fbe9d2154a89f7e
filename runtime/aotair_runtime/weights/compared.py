"""How far two tensors are apart, in numbers and in units in the last place, and whether that is within a tolerance."""

import math
from dataclasses import dataclass

import torch

from ..format.schema import Tolerance

ROW = 64  # numbers that share a scale at least, where a tensor has so many
_OWN = 2  # units in the last place of a tensor's own dtype that count for nothing, where that dtype is the coarser one
_AT_ONCE = 1 << 14  # numbers that are looked at together
_COARSE = 1e-3  # a relative bound from here on is one for numbers that are rounded to steps on their way


@dataclass(frozen=True)
class Difference:
    """The largest error, the largest in units in the last place of its row's greatest number, and whether all elements
    are within the tolerance. A row is as many of the last dimensions as hold `ROW` numbers."""

    error: float
    units: float
    within: bool


_NONE, _OTHER = Difference(0.0, 0.0, True), Difference(math.inf, math.inf, False)


def difference(got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance, slack: float = 0.0) -> Difference:
    """Of each element, `atol + rtol * |want|` is allowed, and what `scale` allows in its row, `slack` at least.

    NaN equals NaN and an infinity equals itself; a NaN or infinity against anything else is an infinite error.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return _OTHER
    if got is want or not got.numel() or torch.equal(got, want):
        return _NONE
    rows = want.reshape(-1, row_length(want.shape))
    unlike = _unlike(got.reshape(rows.shape), rows)
    got, want = (_wide(tensor.reshape(rows.shape)[unlike]) for tensor in (got, want))
    same = (got == want) | (got.isnan() & want.isnan())
    error = torch.where(same, 0.0, (got - want).abs())
    error = torch.where(error.isnan(), torch.inf, error)
    size = torch.where(want.isfinite(), want.abs(), 0.0)
    greatest = size.amax(1, keepdim=True)
    bound = tolerance.atol + tolerance.rtol * size + (greatest * _share(rows.dtype, tolerance)).clamp(min=slack)
    if _has_steps(rows.dtype, tolerance):
        bound = bound.clamp(min=1.0)
    sizes = torch.where(greatest > 0, greatest, 1.0) if has_fractions(rows.dtype) else torch.ones_like(greatest)
    step = sizes * _step(rows.dtype)
    return Difference(float(error.max()), float((error / step).max()), bool((error <= bound).all()))


def compare(got: torch.Tensor, want: torch.Tensor, atol: float, rtol: float) -> tuple[float, bool]:
    """(largest absolute error, whether all elements are within `atol + rtol * |want|`), as `difference` counts."""
    found = difference(got, want, Tolerance(atol, rtol))
    return found.error, found.within


def tolerance_text(tolerance: Tolerance, kind: torch.dtype = torch.float32) -> str:
    """What errors say of a bound, for numbers of a dtype."""
    if not has_fractions(kind) and tolerance.scale:
        return f"{1 if _has_steps(kind, tolerance) else 0} of each whole number"
    absolute = [f"{name} {value:g}" for name in ("atol", "rtol") if (value := getattr(tolerance, name))]
    if not tolerance.scale:
        return f"atol {tolerance.atol:g} and rtol {tolerance.rtol:g}"
    return " and ".join([*absolute, f"{tolerance.scale:g} of the greatest number of its row"])


def row_length(shape: torch.Size) -> int:
    """How many numbers a row of a tensor has."""
    count = 1
    for size in reversed(shape):
        if count >= ROW:
            break
        count *= size
    return count


def _unlike(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """The numbers of the rows that differ. A call writes few rows of a cache: what is equal is passed over at once."""
    step = max(1, _AT_ONCE // want.shape[1])
    found = [
        (mine != theirs).any(1).nonzero().flatten() + number * step
        for number, (mine, theirs) in enumerate(zip(got.split(step), want.split(step)))
        if not torch.equal(mine, theirs)
    ]
    return torch.cat(found)


def _share(dtype: torch.dtype, tolerance: Tolerance) -> float:
    """Of the greatest number of a row, what each element may be off."""
    rounds = tolerance.scale and has_fractions(dtype)
    return max(tolerance.scale, _OWN * _step(dtype)) if rounds else 0.0


def _step(dtype: torch.dtype) -> float:
    """What a unit in the last place of 1 is; of integers, 1."""
    return torch.finfo(dtype).eps if has_fractions(dtype) else 1.0


def _has_steps(dtype: torch.dtype, tolerance: Tolerance) -> bool:
    """Whether numbers of the dtype are others that were rounded: to a whole step, or then to the next one."""
    return tolerance.scale >= _COARSE and dtype in (torch.int8, torch.uint8)


def has_fractions(dtype: torch.dtype) -> bool:
    """Whether numbers of the dtype are measured, not counted."""
    return dtype.is_floating_point or dtype.is_complex


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
