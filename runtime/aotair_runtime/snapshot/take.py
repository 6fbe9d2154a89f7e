"""How is a snapshot taken: of a call that somebody asks for, and of each call that fails?"""

import hashlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ..artifact.folder import Folder
from ..artifact.open import Artifact
from ..call.entry import Entry
from ..call.signature import Tensors
from ..capture.graphs import Parts, Resident
from ..capture.pool import Pool
from ..errors import CallError, SnapshotError, in_line
from ..format.limits import MOST_PROGRAM_BYTES
from ..format.schema import PROGRAM_FILE, EntryPoint
from ..version import __version__
from .file import Snapshot, write_snapshot

_log = logging.getLogger("aotair.runtime")
MOST_FAILED = 8  # snapshots that one load writes of calls that fail: a device that is gone fails all of them


def artifact_digest(artifact: Artifact) -> str:
    """The SHA-256 of the artifact's program, which holds the digests of its weights."""
    folder = artifact.folder or Folder(artifact.path)
    return hashlib.sha256(folder.file(PROGRAM_FILE).content(MOST_PROGRAM_BYTES)).hexdigest()


class Camera:
    """Takes snapshots of the calls of one loaded model, and keeps none of its weights. `folder`: where those of failed
    calls go, if anywhere; `reloads`: how often its weights were replaced."""

    def __init__(self, artifact: Artifact, device: torch.device, folder: Path | None = None, reloads: int = 0):
        self._program, self._digest, self._device = artifact.program, artifact_digest(artifact), device
        self._folder, self._failed, self.reloads = folder, 0, reloads

    def snapshot(
        self, entry: Entry, inputs: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor], error: str = ""
    ) -> Snapshot:
        """The snapshot of a call with these inputs, from these states."""
        return Snapshot(
            model=self._program.name,
            artifact=self._digest,
            entry=entry.spec.name,
            torch_version=torch.__version__,
            aotair_version=__version__,
            device=str(self._device),
            error=error,
            reloads=self.reloads,
            inputs=inputs,
            states=states,
        )

    def states(self, resident: Resident) -> dict[str, torch.Tensor]:
        """Copies of the states as they are now, on the host."""
        return {one.name: on_host(tensor) for one, tensor in zip(self._program.state, resident.states)}

    def failed(self, snapshot: Snapshot) -> None:
        """Write the snapshot of a call that failed; where that fails too, the log says so: the call's own error is what
        its caller has to hear of."""
        assert self._folder is not None
        self._failed += 1
        if self._failed > MOST_FAILED:
            return
        name = re.sub(r"[^\w.-]", "_", f"{snapshot.model}-{snapshot.entry}")[:100]
        try:
            path = _fresh(self._folder, name)
            write_snapshot(path, snapshot)
        except (SnapshotError, OSError) as error:
            _log.warning(
                "a call of %s failed, and no snapshot of it was written: %s", in_line(name), in_line(str(error))
            )
        else:
            _log.warning("a call of %s failed; its snapshot: %s", in_line(name), in_line(str(path)))


class WatchedEntry(Entry):
    """An entry point that keeps what each call gets until it is over, and has a snapshot made where it fails.

    A call whose arguments do not fit makes none: the error says all there is.
    """

    def __init__(
        self, spec: EntryPoint, parts: Parts, resident: Resident, pools: Sequence[Pool], life: object, camera: Camera
    ):
        super().__init__(spec, parts, resident, pools, life)
        self._camera = camera

    def flat(self, tensors: Tensors) -> list[torch.Tensor]:
        with self._lock:
            before = copies(self, tensors)
            states = self._camera.states(self.graphs.resident)
            try:
                return super().flat(tensors)
            except CallError:
                raise
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                self._camera.failed(self._camera.snapshot(self, before, states, said))
                raise


def copies(entry: Entry, tensors: Sequence[object]) -> dict[str, torch.Tensor]:
    """Copies of a call's inputs by name, on the host; lists of the host as tensors, and what is neither left out."""
    found = {}
    for spec, value in zip(entry.spec.inputs, tensors):
        if isinstance(value, torch.Tensor):
            found[spec.name] = on_host(value)
        elif spec.host and isinstance(value, (list, tuple)) and all(type(item) is int for item in value):
            found[spec.name] = torch.tensor(value, dtype=torch.int64, device="cpu")
    return found


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies without gaps on the host."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _fresh(folder: Path, name: str) -> Path:
    """A new, empty file: other processes may write to the same folder."""
    number = 1
    while True:
        path = folder / f"{name}-{number}.safetensors"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return path
        except FileExistsError:
            number += 1
