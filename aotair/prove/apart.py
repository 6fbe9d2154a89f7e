"""Is what a run left behind what the original leaves, within the tolerance, or within how far the original itself
moves?"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from aotair_runtime.format.schema import Tolerance
from aotair_runtime.weights.compared import Difference, difference, has_fractions, tolerance_text

from ..model.written import Written, greatest, side_by_side
from .runs import Run

MOVES = 32  # times as far as the original's own sums in float64 move a tensor, anything may be off
ROUNDS = 4  # times as far as rounding takes a tensor of the original, the same
_MOST = 128.0  # times as far as the tolerance goes, it may be off because of sums
_MOST_SHARE = 0.1  # of a tensor's greatest number: what is let be off further proves nothing


@dataclass(frozen=True)
class Apart:
    """The largest error, the largest in units in the last place; the errors of what is beyond the tolerance, by name,
    and how far that was exceeded where the original moves as much; where it was asked, of everything, how far that
    could be; and the names of all of which something was proved."""

    error: float = 0.0
    units: float = 0.0
    wrong: Mapping[str, "Wrong"] = field(default_factory=dict)
    slack: Mapping[str, float] = field(default_factory=dict)
    seen: Mapping[str, "Seen"] = field(default_factory=dict)
    proved: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Wrong:
    """What is beyond the tolerance, and what would have been allowed, in words."""

    error: float
    units: float
    expected: str


@dataclass(frozen=True)
class Seen:
    """How far off the original's own movement lets something be, in a call, and the greatest number there."""

    slack: float
    most: float

    @property
    def share(self) -> float:
        return self.slack / self.most if self.most else 0.0

    def slack_of(self, wanted: torch.Tensor) -> float:
        """In another call: no further, and less where the numbers are smaller. One that is far off excuses none."""
        return self.share * min(self.most, greatest(wanted))


_NOTHING_SEEN: Mapping[str, Seen] = {}


def apart(
    want: Run, got: Run, tolerance: Tolerance, known: Mapping[str, Seen] = _NOTHING_SEEN, ask: bool = False
) -> Apart:
    """How far a run is from the original's. Where a bound is relative, and a tensor beyond it, the original is asked
    how far it moves itself; but not where the error is within what is `known` of other calls of the same entry point.
    `ask`: in any case. Where that is not enough, it is asked how far its rounding takes it."""
    error = units = 0.0
    wrong: dict[str, Wrong] = {}
    slack: dict[str, float] = {}
    seen: dict[str, Seen] = {}
    proved = set[str]()
    for name, wanted, gotten, with_moved in _pairs(want, got):
        found = difference(gotten, wanted, tolerance)
        if not found.within and name in known:
            found = difference(gotten, wanted, tolerance, known[name].slack_of(wanted))
        if tolerance.scale and (ask or not found.within) and (moved := want.moved()) is not None:
            beside = with_moved(moved)
            far = _slack(*beside, tolerance)
            seen[name] = Seen(far, beside[-1])
            if not found.within:
                found, slack[name] = _beside(*beside[:-1], tolerance, far), far
        most, rounds = greatest(wanted), False
        if tolerance.scale and not found.within and (rounded := want.rounded().get(name)):
            slack[name], rounds = ROUNDS * rounded, True
            found = difference(gotten, wanted, tolerance, slack[name])
        if slack.get(name, 0.0) <= _MOST_SHARE * most:
            proved.add(name)
        error, units = max(error, found.error), max(units, found.units)
        if not found.within:
            wrong[name] = Wrong(found.error, found.units, allowed(tolerance, wanted.dtype, rounds))
    return Apart(error, units, wrong, slack, seen, frozenset(proved))


def least(seen: Iterable[Mapping[str, Seen]]) -> dict[str, Seen]:
    """By name, the least that any run was seen to move by."""
    found: dict[str, Seen] = {}
    for one in seen:
        found |= {name: min(mine, found.get(name, mine), key=lambda item: item.share) for name, mine in one.items()}
    return found


Beside = tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]  # got, wanted, moved, the greatest number there


def _pairs(want: Run, got: Run) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, Callable[[Run], Beside]]]:
    """The name of each thing that calls leave behind, what is wanted of it and what came, and how both are laid beside
    what the original moves."""
    for place, (name, wanted, gotten) in enumerate(zip(want.names, want.tensors, got.tensors, strict=True)):
        yield name, wanted, gotten, functools.partial(_tensors_beside, place, gotten, wanted)
    for name, state in want.states.items():
        other = got.states[name]
        gotten, wanted = side_by_side(other, state)
        yield f"state {name}", wanted, gotten, functools.partial(_states_beside, name, other, state)


def _tensors_beside(place: int, got: torch.Tensor, want: torch.Tensor, moved: Run) -> Beside:
    return got, want, moved.tensors[place], greatest(want)


def _states_beside(name: str, got: Written, want: Written, moved: Run) -> Beside:
    mine, wanted, there = side_by_side(got, want, moved.states[name])
    return mine, wanted, there, greatest(wanted)


def allowed(tolerance: Tolerance, kind: torch.dtype, rounds: bool = False) -> str:
    """What errors say of the bound for numbers of a dtype; `rounds`: where that was asked."""
    text = f"within {tolerance_text(tolerance, kind)}"
    if not tolerance.scale or not has_fractions(kind):
        return text
    text = f"{text}, or within {MOVES} times what the original moves where its sums are made in float64"
    return f"{text}, or within {ROUNDS} times what its own rounding moves it" if rounds else text


def _slack(got: torch.Tensor, want: torch.Tensor, moved: torch.Tensor, most: float, tolerance: Tolerance) -> float:
    """How far off the original's own movement lets something be. What is counted may not be off."""
    if not _alike(got, want, moved) or not has_fractions(want.dtype) or not want.numel():
        return 0.0
    wide = torch.complex128 if want.is_complex() else torch.float64
    step = (moved.to(wide) - want.to(wide)).abs()
    far = float(torch.where(step.isfinite(), step, 0.0).max())
    return min(MOVES * far, min(_MOST * tolerance.scale, _MOST_SHARE) * most)


def _beside(
    got: torch.Tensor, want: torch.Tensor, moved: torch.Tensor, tolerance: Tolerance, slack: float
) -> Difference:
    """The difference with that slack. What is counted may be anything where the original itself counts otherwise."""
    if _alike(got, want, moved) and not has_fractions(want.dtype):
        got = torch.where(moved != want, want, got)
    return difference(got, want, tolerance, slack)


def _alike(*tensors: torch.Tensor) -> bool:
    return len({(tensor.shape, tensor.dtype) for tensor in tensors}) == 1
