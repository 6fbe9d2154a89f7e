"""Each distinct tensor once: tied weights and equal contents go by the first name they came with."""

import hashlib
from collections.abc import Mapping

import torch

from aotair_runtime.format.mesh import cuts_of
from aotair_runtime.format.schema import Constant, Shard

from ..graph.resolve import resolved
from ..model.tied_names import Names
from ..parallel.split import Part


class DistinctTensors:
    """`share`: whether weights that are only equal are stored once, too. What a checkpoint has never shares with what
    none has: the one may get other values later. `parts`: by name, the tensors of which rank 0 has only a part; the
    wholes are compared and stored."""

    def __init__(self, names: Names | None = None, share: bool = True, parts: Mapping[str, Part] | None = None):
        self._model, self._share, self._parts = names or Names(), share, parts or {}
        self._stored: dict[tuple[object, ...], str] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._shards: dict[str, Shard] = {}
        self._groups: dict[str, dict[tuple[str, ...], None]] = {}

    def name_of(self, name: str, tensor: torch.Tensor) -> str:
        """The name under which a tensor with these contents is stored: its first, unless an equal one came before."""
        group, kind = self._model.group(name), self._model.kind(name)
        part = next((self._parts[one] for one in (name, *group) if one in self._parts), None)
        tensor = resolved((tensor if part is None else part.whole).detach()).contiguous()
        apart = group if kind == "weight" and not self._share else ()
        shard = None if part is None else part.shard
        key = (kind, apart, tensor.dtype, tuple(tensor.shape), shard, _digest(tensor))
        stored = self._stored.setdefault(key, group[0])
        self._tensors.setdefault(stored, tensor)
        self._groups.setdefault(stored, {})[group] = None
        if shard is not None:
            self._shards.setdefault(stored, shard)
        return stored

    def tensor(self, name: str) -> torch.Tensor:
        """The stored tensor of that name, whole."""
        return self._tensors[name]

    def constant(self, name: str) -> Constant:
        """The stored tensor of that name, as the program describes it."""
        tensor, kind, shard = self._tensors[name], self._model.kind(name), self._shards.get(name)
        dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
        for cut in () if shard is None else cuts_of(shard):
            shape[cut.dim] //= cut.parts
        return Constant(name, dtype, tuple(shape), kind, tuple(self._groups[name]), shard)


def _digest(tensor: torch.Tensor) -> bytes:
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).digest()
