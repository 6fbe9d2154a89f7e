"""What does the file of a snapshot hold? Tensors as safetensors, one of which says in JSON what the call was of.

`about` is a tensor of bytes: the JSON object of `_FORM`. Inputs are `in.NAME`, states before the call
`state.NAME`. There is no pickle, and a file of somebody else's is checked before it is believed.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from ..artifact.about import MOST_TEXT, AboutForm
from ..artifact.about import NAME as ABOUT
from ..artifact.folder import Descriptor, OpenFile, State
from ..artifact.tensors import mapped, tensors_in
from ..errors import AotairError, SnapshotError

VERSION = 1
_MOST_HEADER = 16 << 20
_INPUT, _STATE = "in.", "state."
_FORM = AboutForm(
    kinds={
        "model": str, "artifact": str, "entry": str, "torch_version": str, "aotair_version": str, "device": str,
        "error": str, "reloads": int,
    },
    version=VERSION,
    most=64 << 10,
    error=SnapshotError,
    missing="this is no snapshot of a call",
    malformed="what the snapshot says of itself is malformed",
    other_version="a snapshot of another version",
)  # fmt: skip


@dataclass(frozen=True)
class Snapshot:
    """One call: the names of the model and of its entry point, the SHA-256 of the artifact's `program.msgpack`, the
    versions and the device that it was made with, what it failed with (empty: it was not made, or did not fail), how
    often the weights had been replaced, and the inputs and the states before it, by name, on the host."""

    model: str
    artifact: str
    entry: str
    torch_version: str
    aotair_version: str
    device: str
    error: str
    reloads: int
    inputs: Mapping[str, torch.Tensor]
    states: Mapping[str, torch.Tensor]


def write_snapshot(path: str | Path, snapshot: Snapshot) -> None:
    """Write a snapshot to a file. Raises SnapshotError where that cannot be done."""
    about = {name: getattr(snapshot, name) for name in _FORM.kinds} | {"error": snapshot.error[: MOST_TEXT // 2]}
    tensors = {_INPUT + name: tensor for name, tensor in snapshot.inputs.items()}
    tensors |= {_STATE + name: tensor for name, tensor in snapshot.states.items()}
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    tensors[ABOUT] = _FORM.tensor(about)
    try:
        safetensors.torch.save_file(_with_own_memory(tensors), path)
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise SnapshotError(
            f"the snapshot cannot be written: {error}", where=str(path), expected="a path in a folder that is there"
        ) from error


def read_snapshot(path: str | Path) -> Snapshot:
    """The snapshot in a file that somebody else may have written. Raises SnapshotError."""
    where = str(path)
    try:
        file = _opened(Path(path))
        tensors = tensors_in(mapped(file, private=True), where, _MOST_HEADER)
    except SnapshotError:
        raise
    except AotairError as error:
        raise SnapshotError(
            f"this is no good snapshot: {error.what}", where=where, got=error.got, fix="copy the file again"
        ) from error
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SnapshotError(f"the snapshot cannot be read: {what}", where=where) from error
    about = _FORM.read(tensors.pop(ABOUT, None), where)
    inputs, states = (
        {name.removeprefix(side): tensor for name, tensor in tensors.items() if name.startswith(side)}
        for side in (_INPUT, _STATE)
    )
    if len(inputs) + len(states) != len(tensors):
        others = [name for name in tensors if not name.startswith((_INPUT, _STATE))]
        raise SnapshotError("the snapshot holds a tensor that none has", where=where, got=ascii(others[0])[:80])
    return Snapshot(inputs=inputs, states=states, **about)  # type: ignore[arg-type]  # the form has checked each


def _opened(path: Path) -> OpenFile:
    """A regular file, opened once; a pipe of that name would wait for somebody who writes."""
    opened = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    found = os.fstat(opened.number)
    if not stat.S_ISREG(found.st_mode):
        raise SnapshotError("this is no regular file", where=str(path), expected="the file of a snapshot")
    return OpenFile(str(path), opened, State.of(found))


def _with_own_memory(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same; those that share memory with one before as copies, which safetensors asks for."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        start = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if start in seen else tensor
        seen.add(start)
    return found
