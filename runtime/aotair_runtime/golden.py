"""The golden tensors: what the original model answered at build time, and whether the artifact still answers so."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .artifact import read_golden
from .buckets import describe
from .errors import MalformedError

if TYPE_CHECKING:
    from .model import Model


@dataclass(frozen=True)
class Comparison:
    """The largest absolute error over the outputs of one bucket, and whether every element is within tolerance."""

    entry: str
    bucket: str
    max_abs_error: float
    within: bool


def key(entry: str, bucket: int, side: str, name: object) -> str:
    """The name of a golden tensor. `side`: "in", "out", "after" (a mutated input afterwards) or "state" (likewise)."""
    return f"{entry}.{bucket}.{side}.{name}"


def compare(got: torch.Tensor, want: torch.Tensor, atol: float, rtol: float) -> tuple[float, bool]:
    """(largest absolute error, whether all elements are within `atol + rtol * |want|`).

    NaN equals NaN and an infinity equals itself; a NaN or infinity against anything else is an infinite error.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf"), False
    if not got.numel():
        return 0.0, True
    wide = torch.complex128 if got.is_complex() else torch.float64
    got, want = got.to(wide), want.to(wide)
    same = (got == want) | (got.isnan() & want.isnan())
    error = torch.where(same, 0.0, (got - want).abs())
    error = torch.where(error.isnan(), torch.inf, error)
    bound = atol + rtol * torch.where(want.isfinite(), want.abs(), 0.0)
    return float(error.max()), bool((error <= bound).all())


def replay_golden(model: "Model") -> Iterator[Comparison]:
    """Replay the golden inputs of every bucket, and compare."""
    tolerance = model.program.tolerance
    golden = read_golden(model.artifact)
    for entry in model.program.entry_points:
        for number, bucket in enumerate(entry.buckets):
            given = [_take(golden, key(entry.name, number, "in", spec.name)) for spec in entry.inputs]
            homes = ["cpu" if spec.host else model.device for spec in entry.inputs]
            given = [tensor.to(home, copy=True) for tensor, home in zip(given, homes)]
            model.reset_state()
            outputs = model.entry_points[entry.name].flat(given)
            pairs = [(out, _take(golden, key(entry.name, number, "out", i))) for i, out in enumerate(outputs)]
            pairs += [
                (tensor, _take(golden, key(entry.name, number, "after", spec.name)))
                for tensor, spec in zip(given, entry.inputs)
                if spec.kind == "mutated"
            ]
            pairs += [(t, _take(golden, key(entry.name, number, "state", name))) for name, t in model.state.items()]
            results = [compare(got.cpu(), want, tolerance.atol, tolerance.rtol) for got, want in pairs]
            yield Comparison(
                entry.name,
                describe(entry, bucket.sizes),
                max((error for error, _ in results), default=0.0),
                all(within for _, within in results),
            )


def _take(golden: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in golden:
        raise MalformedError(f"the golden tensor {name!r} is missing")
    return golden[name]
