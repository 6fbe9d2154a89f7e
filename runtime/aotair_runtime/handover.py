"""How are the states of some sequences handed from one model to another, in another process or on another node?

What is handed over is a dictionary of tensors on the host, which safetensors, torch.distributed, shared memory or
anything else may carry: `state.NAME`, (slots, rows, …), for each state, and `about`, bytes of JSON that say what they
are of. There is no pickle, and a dictionary of somebody else's is checked before anything of it is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from .artifact.about import NAME as ABOUT
from .artifact.about import AboutForm, has_values
from .errors import ArgumentError, HandoverError
from .format.mesh import coordinates, spoken_axes
from .format.schema import Program

VERSION = 1
_STATE = "state."
_PLACES = ("slots", "block_table")  # the inputs that say where sequences lie, as the task text-generation calls them
_MOST_SLOTS = 1 << 31
# `whole`: all rows of each slot are there, not the first of them alone. `place`: of the rank in its mesh.
_FORM = AboutForm(
    kinds={"whole": bool, "place": str},
    version=VERSION,
    most=1 << 10,
    error=HandoverError,
    missing="this is nothing that export_state gave",
    malformed="what it says of itself is malformed",
    other_version="states of another version",
)


@dataclass(frozen=True)
class Division:
    """Into how many equal `parts` each state is divided along its first dimension; the first `usable` of them may hold
    a sequence, and one after them, if any, is nobody's."""

    parts: int
    usable: int


def division(program: Program, parts: int | None) -> Division:
    """What the caller says, or else what the program's inputs `slots` or `block_table` may hold. Raises
    ArgumentError."""
    if not program.state:
        raise ArgumentError("this model has no states", fix="hand over those of a model that keeps some")
    if parts is not None:
        if type(parts) is not int or parts < 1:
            raise ArgumentError("parts is no number of parts", expected="an int from 1 on", got=repr(parts)[:80])
        return Division(parts, parts)
    for entry in program.entry_points:
        for one in entry.inputs:
            most = one.value_range[-1] if one.name in _PLACES and one.value_range else 0
            if 1 <= most < _MOST_SLOTS:
                return Division(int(most) + (one.pad is not None), int(most))
    raise ArgumentError(
        "nothing says into how many slots the states are divided",
        expected=f"an input {' or '.join(_PLACES)} with a range in the recipe",
        fix="say it: parts=, the number of equal parts along the first dimension of each state",
    )


def taken(
    program: Program,
    states: Mapping[str, torch.Tensor],
    slots: Sequence[int],
    rows: int | None,
    parts: int | None,
    rank: int,
) -> dict[str, torch.Tensor]:
    """Copies of what these slots hold, on the host. Raises ArgumentError."""
    among = division(program, parts)
    places = _slots(slots, among)
    if rows is not None and (type(rows) is not int or rows < 1):
        raise ArgumentError("rows is no number of rows", expected="an int from 1 on", got=repr(rows)[:80])
    divided = _divided(states, among)
    found = {ABOUT: _FORM.tensor({"whole": rows is None, "place": place_of(program, rank)})}
    for name, state in divided.items():
        held = [state[slot, :rows] for slot in places]
        found[_STATE + name] = copies = torch.empty((len(places), *held[0].shape), dtype=state.dtype, device="cpu")
        for copy, part in zip(copies, held, strict=True):
            copy.copy_(part)
    return found


def checked(
    program: Program,
    states: Mapping[str, torch.Tensor],
    given: Mapping[str, torch.Tensor],
    slots: Sequence[int],
    parts: int | None,
    rank: int,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Where to write, and what: pairs of views of the states, one for each slot, and of what was given. Raises
    ArgumentError for slots, HandoverError for what does not fit the model."""
    among = division(program, parts)
    places = _slots(slots, among)
    if not isinstance(given, Mapping) or not all(isinstance(one, torch.Tensor) for one in given.values()):
        raise ArgumentError(
            "import_state takes what export_state gave", expected="a dict of tensors", got=type(given).__name__
        )
    about = _FORM.read(given.get(ABOUT))
    mine = place_of(program, rank)
    if about["place"] != mine:
        raise HandoverError(
            "these are states of another rank, or of another mesh",
            expected=mine or "a model of one rank",
            got=str(about["place"]) or "a model of one rank",
            fix="give each rank what the rank at its place in an equal mesh has exported",
        )
    divided = _divided(states, among)
    if (names := {_STATE + name for name in divided} | {ABOUT}) != given.keys():
        differing = sorted(names ^ given.keys(), key=str)
        raise HandoverError(
            "these are states of another model", expected=_some(names), got=f"{ascii(differing[0])[:80]} in one of both"
        )
    pairs = []
    for name, state in divided.items():
        one = given[_STATE + name]
        _refuse_misfit(name, one, state, len(places), about["whole"] is True)
        pairs += [(state[slot, : one.shape[1]], one.detach()[number]) for number, slot in enumerate(places)]
    return pairs


def place_of(program: Program, rank: int) -> str:
    """Where a rank lies along the axes on which what ranks hold differs: `tp 0 of 2`; empty: nothing differs."""
    axes, at = spoken_axes(program), coordinates(program.mesh, rank)
    return ", ".join(f"{program.mesh[n].name} {at[n]} of {program.mesh[n].size}" for n in sorted(axes))


def _slots(slots: Sequence[int], among: Division) -> list[int]:
    expected = f"different numbers from 0 to {among.usable - 1}"
    if isinstance(slots, (str, bytes)) or not isinstance(slots, Sequence) or not slots:
        raise ArgumentError("slots is no list of slots", expected=expected, got=repr(slots)[:80])
    if any(type(slot) is not int or not 0 <= slot < among.usable for slot in slots) or len({*slots}) != len(slots):
        raise ArgumentError("slots that the states do not have", expected=expected, got=repr(slots)[:80])
    return list(slots)


def _divided(states: Mapping[str, torch.Tensor], among: Division) -> dict[str, torch.Tensor]:
    """Views of the states, (parts, rows, …)."""
    for name, state in states.items():
        if not state.dim() or state.shape[0] % among.parts:
            raise ArgumentError(
                f"the state {name} cannot be divided into {among.parts} slots",
                expected=f"a first dimension that {among.parts} divides",
                got=str(tuple(state.shape)),
                fix="say how it is divided: parts=",
            )
    return {name: state.unflatten(0, (among.parts, -1)) for name, state in states.items()}


def _refuse_misfit(name: str, given: torch.Tensor, state: torch.Tensor, slots: int, whole: bool) -> None:
    """Raises HandoverError where what was given for a state is not so many slots of it."""
    rows = given.shape[1] if given.dim() > 1 else 0
    fits = rows == state.shape[1] if whole else 0 < rows <= state.shape[1]
    if fits and has_values(given) and given.dtype == state.dtype and given.shape == (slots, rows, *state.shape[2:]):
        return
    most = f"{state.shape[1]}" if whole else f"1 to {state.shape[1]}"
    raise HandoverError(
        f"the state {name} does not fit",
        expected=f"{state.dtype}, {slots} slots of {most} rows, each of {tuple(state.shape[2:])}",
        got=f"{given.dtype}, {tuple(given.shape)}"[:200],
        fix="export fewer rows (rows=) where slots are shorter here" if whole else "",
    )


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names))[:200]
