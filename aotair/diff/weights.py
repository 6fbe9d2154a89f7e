"""Which weights of two artifacts differ, and by how much?"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from aotair_runtime.artifact.open import Artifact
from aotair_runtime.format.schema import Constant

from .flow import constant_names

_AT_ONCE = 1 << 22  # numbers that are compared together


@dataclass(frozen=True)
class WeightChange:
    """A weight that is not what it was. `what`: added, removed, shape (or dtype), values. Of values: how many of how
    many numbers differ, the largest difference, and the difference's norm by the weight's."""

    name: str
    what: str
    before: str = ""
    after: str = ""
    numbers: int = 0
    of: int = 0
    largest: float = 0.0
    relative: float = 0.0


def weight_changes(one: Artifact, other: Artifact) -> tuple[WeightChange, ...]:
    """The constants that differ. One that is made of weights is the one of the other that is made alike, whatever
    number its name has."""
    mine, theirs = (
        dict(zip(constant_names(side.program), zip(side.program.constants, side.constants, strict=True)))
        for side in (one, other)
    )
    return tuple(_changes(mine, theirs))


def _changes(
    mine: dict[str, tuple[Constant, torch.Tensor]], theirs: dict[str, tuple[Constant, torch.Tensor]]
) -> Iterator[WeightChange]:
    for key in dict.fromkeys((*mine, *theirs)):
        before, after = (_text(side[key][0]) if key in side else "" for side in (mine, theirs))
        name = (mine.get(key) or theirs[key])[0].name
        if not before or not after:
            yield WeightChange(name, "removed" if before else "added", before, after)
        elif before != after:
            yield WeightChange(name, "shape", before, after)
        elif (found := _difference(mine[key][1], theirs[key][1])) is not None:
            numbers, largest, relative = found
            yield WeightChange(name, "values", before, after, numbers, mine[key][1].numel(), largest, relative)


def _text(spec: Constant) -> str:
    return f"{spec.dtype}{list(spec.shape)}"


def _difference(mine: torch.Tensor, theirs: torch.Tensor) -> tuple[int, float, float] | None:
    """How many numbers differ, the largest difference, and its norm by that of `mine`; None where all are equal. NaN is
    equal to itself."""
    count, largest, apart, whole = 0, 0.0, 0.0, 0.0
    for one, other in zip(mine.flatten().split(_AT_ONCE), theirs.flatten().split(_AT_ONCE)):
        wide = torch.complex128 if one.is_complex() else torch.float64
        a, b = one.to(wide), other.to(wide)
        unlike = (a != b) & ~(a.isnan() & b.isnan())
        whole += float(a.abs().nan_to_num(posinf=0.0).square().sum())
        if bool(unlike.any()):
            step = (a - b).abs()[unlike].nan_to_num(nan=torch.inf)
            count += int(unlike.sum())
            largest, apart = max(largest, float(step.max())), apart + float(step.square().sum())
    if not count:
        return None
    relative = (apart / whole) ** 0.5 if whole else float("inf")
    return count, largest, relative
