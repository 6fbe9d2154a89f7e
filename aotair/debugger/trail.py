"""What did each call of a run get, and what did it leave? And from which on do two runs differ?"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch.fx.node import Node

from aotair_runtime.format.debug_data import Made
from aotair_runtime.format.schema import Tolerance
from aotair_runtime.weights.compared import Difference, difference

from ..diff.flow import OVERWRITE

Tensors: TypeAlias = tuple[torch.Tensor | None, ...]
_SHOWN = 6  # numbers of a result that are shown


@dataclass(frozen=True)
class Seen:
    """A call: its name in the graph, its op, where it comes from, copies on the host of the tensors that it got, and of
    what it left: its results, then what it wrote into. None stands for a constant, and for what nobody looked at.
    Of a graph's call also its `node`, and `again`: what it leaves where it gets other tensors."""

    name: str
    op: str
    made: Made
    given: Tensors
    results: Tensors
    node: Node | None = None
    again: Callable[[Tensors], Tensors] | None = None


Trail: TypeAlias = Mapping[str, Seen]  # by name, in the order of the calls


@dataclass(frozen=True)
class Apart:
    """Two tensors that should be the same: by how much they differ, and their numbers where that is most."""

    error: float
    units: float
    got: str
    want: str


@dataclass(frozen=True)
class Point:
    """The error of one call's results against those of another run: one of a plot."""

    name: str
    line: str
    error: float
    within: bool


def overwrites(op: str) -> bool:
    """Whether an op, by its name, writes into its first argument and does not read it."""
    return re.split(r"::|\.", op)[1] in OVERWRITE


def apart(got: torch.Tensor, want: torch.Tensor, found: Difference) -> Apart:
    """The difference, with the numbers around the place of the largest one."""
    if got.shape != want.shape or not got.numel():
        return Apart(found.error, found.units, f"shape {list(got.shape)}", f"shape {list(want.shape)}")
    wide = torch.complex128 if want.is_complex() else torch.float64
    step = (got.to(wide) - want.to(wide)).abs().nan_to_num(torch.inf).flatten()
    place = int(step.argmax())
    start = max(0, min(place - 1, step.numel() - _SHOWN))
    where = f"at {[int(i) for i in torch.unravel_index(torch.tensor(place), want.shape)]}: "
    texts = (_numbers(tensor.flatten()[start : start + _SHOWN]) for tensor in (got, want))
    return Apart(found.error, found.units, where + next(texts), next(texts))


def _numbers(part: torch.Tensor) -> str:
    return "[" + ", ".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in part.tolist()) + "]"


def compared(got: Tensors, want: Tensors) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The pairs that can be compared; none where there are others than expected."""
    if len(got) != len(want):
        return
    for mine, theirs in zip(got, want):
        if mine is not None and theirs is not None and mine.shape == theirs.shape and mine.dtype == theirs.dtype:
            yield mine, theirs


def worst(got: Tensors, want: Tensors, tolerance: Tolerance) -> Apart | None:
    """The first pair that is further apart than the tolerance, or None."""
    for mine, theirs in compared(got, want):
        found = difference(mine, theirs, tolerance)
        if not found.within:
            return apart(mine, theirs, found)
    return None


def points(got: Trail, want: Trail, tolerance: Tolerance) -> list[Point]:
    """The errors of all calls that both runs made, in order."""
    found = []
    for name, seen in got.items():
        if name in want:
            errors = [difference(*pair, tolerance) for pair in compared(seen.results, want[name].results)]
            if errors:
                most, line = max(one.error for one in errors), seen.made.line or want[name].made.line or name
                found.append(Point(name, line, most, all(one.within for one in errors)))
    return found


def kept(tensors: Sequence[torch.Tensor | None]) -> Tensors:
    """Copies on the host."""
    return tuple(None if one is None else one.detach().to("cpu", copy=True).contiguous() for one in tensors)
