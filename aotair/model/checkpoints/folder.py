"""What lies in a checkpoint's folder beside its tensors: the configuration, and what the headers of its files say."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch

from aotair_runtime.artifact.checkpoint import Checkpoint
from aotair_runtime.artifact.quantisation import CONFIG, PARTS

from ...errors import ModelError
from .fields import Fields, read_fields


@dataclass(frozen=True)
class Folder:
    """A checkpoint, and the folder that it lies in."""

    checkpoint: Checkpoint

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    @functools.cached_property
    def quantization(self) -> Fields | None:
        """The part of config.json that says how the weights are quantised; None where nothing says so."""
        file = self.path / CONFIG
        if not self.path.is_dir() or not file.is_file():
            return None
        config = read_fields(file)
        found = [part for name in PARTS if (part := config.part(name)) is not None]
        return found[0] if found else None

    @functools.cached_property
    def headers(self) -> Mapping[str, str]:
        """What the headers of all files say, by key."""
        found: dict[str, str] = {}
        for file in dict.fromkeys(stored.file for stored in self.checkpoint.tensors.values()):
            with safetensors.safe_open(str(file), framework="pt") as handle:
                found |= handle.metadata() or {}
        return found

    def dtype(self, name: str) -> torch.dtype | None:
        """The dtype of a tensor; None where there is none of that name."""
        stored = self.checkpoint.tensors.get(name)
        return None if stored is None else stored.dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor; empty where there is none of that name."""
        stored = self.checkpoint.tensors.get(name)
        return () if stored is None else stored.shape

    def modules_with(self, tensor: str, *dtypes: torch.dtype) -> tuple[str, ...]:
        """The modules that have a tensor of that name, of one of these dtypes where any are given."""
        end = f".{tensor}"
        return tuple(
            name.removesuffix(end)
            for name, stored in self.checkpoint.tensors.items()
            if name.endswith(end) and (not dtypes or stored.dtype in dtypes)
        )

    def refused(self, name: str, what: str, expected: str = "", got: str = "") -> ModelError:
        """The error about the quantised layer of that name."""
        return ModelError(f"model.weights: {name}: {what}", where=str(self.path), expected=expected, got=got)
