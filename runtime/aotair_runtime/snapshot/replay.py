"""Does a stored call fit a loaded model, and what does the model answer?"""

from collections.abc import Mapping
from typing import Protocol

import torch

from ..artifact.open import Artifact
from ..call.buckets import choose, read_sizes
from ..call.entry import Entry
from ..errors import ShapeError, SnapshotError
from ..format.schema import EntryPoint, Program
from ..format.structure import leaf_names
from ..format.torch_names import dtype
from .file import Snapshot
from .take import artifact_digest


class Loaded(Protocol):
    """A loaded artifact; `aotair_runtime.Model` is one."""

    artifact: Artifact
    entry_points: dict[str, Entry]

    @property
    def program(self) -> Program: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def state(self) -> Mapping[str, torch.Tensor]: ...


def fitting_entry(program: Program, snapshot: Snapshot, where: str) -> EntryPoint:
    """The entry point that takes a stored call. Raises SnapshotError where the program has none, or where the call's
    inputs or states are not those that it takes."""
    entry = next((one for one in program.entry_points if one.name == snapshot.entry), None)
    if entry is None:
        names = ", ".join(one.name for one in program.entry_points)
        raise _other(f"the model has no entry point {ascii(snapshot.entry)[:80]}", where, names, "")
    wanted = {one.name: dtype(one.dtype) for one in entry.inputs}
    _compare("inputs", wanted, {name: tensor.dtype for name, tensor in snapshot.inputs.items()}, where)
    states = {one.name: program.constants[one.constant] for one in program.state}
    shapes = {name: (dtype(one.dtype), one.shape) for name, one in states.items()}
    _compare("states", shapes, {name: (one.dtype, tuple(one.shape)) for name, one in snapshot.states.items()}, where)
    try:
        choose(entry, read_sizes(entry, [snapshot.inputs[one.name].shape for one in entry.inputs]))
    except ShapeError as error:
        raise _other(f"the sizes of its inputs: {error.what}", where, error.expected, error.got) from error
    return entry


def replay(model: Loaded, snapshot: Snapshot, where: str) -> dict[str, torch.Tensor]:
    """Make the stored call, from the stored states; the outputs by name. The model's states are those after it. Raises
    SnapshotError where the call does not fit; `where` names the snapshot's file."""
    spec = fitting_entry(model.program, snapshot, where)
    with torch.inference_mode():
        for name, tensor in model.state.items():
            tensor.copy_(snapshot.states[name])
    given = given_inputs(spec, snapshot, model.device)
    return dict(zip(leaf_names(spec.structure), model.entry_points[spec.name].flat(given), strict=True))


def given_inputs(entry: EntryPoint, snapshot: Snapshot, device: torch.device) -> list[torch.Tensor]:
    """The stored inputs as the entry point takes them: those of the host there, copies of the others on the device."""
    return [snapshot.inputs[one.name].to("cpu" if one.host else device, copy=not one.host) for one in entry.inputs]


def notes(artifact: Artifact, snapshot: Snapshot) -> list[str]:
    """What makes this another call than the one that was stored, though it fits."""
    found = []
    if artifact_digest(artifact) != snapshot.artifact:
        found.append("the snapshot was taken of another artifact of the model than this one: its weights may differ")
    if snapshot.reloads:
        found.append(f"the weights had been replaced {snapshot.reloads} times: here they are the artifact's own")
    return found


def _compare(what: str, want: Mapping[str, object], got: Mapping[str, object], where: str) -> None:
    for name in (*want, *got):
        if want.get(name) != got.get(name):
            said = [str(side.get(name, "nothing")).replace("torch.", "") for side in (want, got)]
            raise _other(f"of the {what}, {ascii(name)[:80]} is not what the model has", where, said[0], said[1][:200])


def _other(what: str, where: str, expected: str, got: str) -> SnapshotError:
    fix = "replay it with an artifact of the model that it was taken of"
    return SnapshotError(f"the snapshot is of another model: {what}", where=where, expected=expected, got=got, fix=fix)
