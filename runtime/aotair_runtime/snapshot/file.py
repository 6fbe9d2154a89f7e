"""What does the file of a snapshot hold? Tensors as safetensors, one of which says in JSON what the call was of.

`about` is a tensor of bytes: the JSON object of `_ABOUT`, and `version`. Inputs are `in.NAME`, states before the call
`state.NAME`. There is no pickle, and a file of somebody else's is checked before it is believed.
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from ..artifact.folder import Descriptor, OpenFile, State
from ..artifact.json_file import distinct
from ..artifact.tensors import mapped, tensors_in
from ..errors import AotairError, SnapshotError

VERSION = 1
_MOST_HEADER, _MOST_ABOUT, _MOST_TEXT = 16 << 20, 64 << 10, 8 << 10
_MALFORMED = "what the snapshot says of itself is malformed"
_INPUT, _STATE = "in.", "state."
# What `about` says, and its type.
_ABOUT: Mapping[str, type] = {
    "model": str, "artifact": str, "entry": str, "torch_version": str, "aotair_version": str, "device": str,
    "error": str, "reloads": int,
}  # fmt: skip


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
    about = {name: getattr(snapshot, name) for name in _ABOUT} | {"version": VERSION}
    about["error"] = snapshot.error[: _MOST_TEXT // 2]
    text = json.dumps(about, sort_keys=True).encode()
    tensors = {_INPUT + name: tensor for name, tensor in snapshot.inputs.items()}
    tensors |= {_STATE + name: tensor for name, tensor in snapshot.states.items()}
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    tensors["about"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
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
    about = _about(tensors.pop("about", None), where)
    inputs, states = (
        {name.removeprefix(side): tensor for name, tensor in tensors.items() if name.startswith(side)}
        for side in (_INPUT, _STATE)
    )
    if len(inputs) + len(states) != len(tensors):
        others = [name for name in tensors if not name.startswith((_INPUT, _STATE))]
        raise SnapshotError("the snapshot holds a tensor that none has", where=where, got=ascii(others[0])[:80])
    return Snapshot(inputs=inputs, states=states, **about)  # type: ignore[arg-type]  # `_about` has checked each


def _opened(path: Path) -> OpenFile:
    """A regular file, opened once; a pipe of that name would wait for somebody who writes."""
    opened = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    found = os.fstat(opened.number)
    if not stat.S_ISREG(found.st_mode):
        raise SnapshotError("this is no regular file", where=str(path), expected="the file of a snapshot")
    return OpenFile(str(path), opened, State.of(found))


def _about(stored: torch.Tensor | None, where: str) -> dict[str, object]:
    """What the tensor `about` says, each of the type that it has to have."""
    if stored is None:
        raise SnapshotError("this is no snapshot of a call", where=where, expected="a tensor 'about'")
    if stored.dtype != torch.uint8 or stored.dim() != 1 or stored.numel() > _MOST_ABOUT:
        raise SnapshotError(_MALFORMED, where=where, expected="bytes of JSON")
    try:
        found = json.loads(bytes(stored.tolist()).decode("utf-8"), object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(_MALFORMED, where=where, got=str(error)[:80]) from error
    if not isinstance(found, dict) or type(found.get("version")) is not int or found["version"] != VERSION:
        got = ascii(found.get("version"))[:20] if isinstance(found, dict) else "no object"
        raise SnapshotError("a snapshot of another version", where=where, expected=str(VERSION), got=got)
    for name, kind in _ABOUT.items():
        value = found.get(name)
        if type(value) is not kind or (isinstance(value, str) and len(value) > _MOST_TEXT):
            raise SnapshotError(_MALFORMED, where=where, expected=f"{name}: {kind.__name__}", got=ascii(value)[:80])
    return {name: found[name] for name in _ABOUT}


def _with_own_memory(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same; those that share memory with one before as copies, which safetensors asks for."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        start = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if start in seen else tensor
        seen.add(start)
    return found
