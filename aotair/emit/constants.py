"""Each distinct tensor once: tied weights and equal contents go by the first name they came with."""

import hashlib

import torch

from aotair_runtime.format.schema import Constant

from ..graph.resolve import resolved
from ..model.tied_names import Names


class DistinctTensors:
    """`share`: whether weights that are only equal are stored once, too. What a checkpoint has never shares with what
    none has: the one may get other values later."""

    def __init__(self, names: Names | None = None, share: bool = True):
        self._model, self._share = names or Names(), share
        self._stored: dict[tuple[object, ...], str] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._groups: dict[str, dict[tuple[str, ...], None]] = {}

    def name_of(self, name: str, tensor: torch.Tensor) -> str:
        """The name under which a tensor with these contents is stored: its first, unless an equal one came before."""
        tensor = resolved(tensor.detach()).contiguous()
        group, kind = self._model.group(name), self._model.kind(name)
        apart = group if kind == "weight" and not self._share else ()
        key = (kind, apart, tensor.dtype, tuple(tensor.shape), _digest(tensor))
        stored = self._stored.setdefault(key, group[0])
        self._tensors.setdefault(stored, tensor)
        self._groups.setdefault(stored, {})[group] = None
        return stored

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def constant(self, name: str) -> Constant:
        """The stored tensor of that name, as the program describes it."""
        tensor, kind = self._tensors[name], self._model.kind(name)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return Constant(name, dtype, tuple(tensor.shape), kind, tuple(self._groups[name]))


def _digest(tensor: torch.Tensor) -> bytes:
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).digest()
