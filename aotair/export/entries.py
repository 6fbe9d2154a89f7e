"""The graphs of all entry points: those of a large model are exported by several processes, and come from these into
this one.

torch pickles graphs with their symbolic sizes. Tensors of the model are not copied: each is named by its place among
all of them, which is the same in a process and its copies, and where another machine has loaded the same model.
"""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ..model.hidden_state import hidden_tensors
from ..recipe.entry import EntryJob
from ..share import is_handed_over, shared_out
from .exported import Exported, NamedTensor
from .variants import export_buckets

_WORTH = 200  # modules of a model whose export is worth another process

Place = tuple[object, ...]


def export_entries(model: torch.nn.Module, entries: Sequence[EntryJob], jobs: int) -> list[Exported]:
    """The graphs of each entry point, in so many processes. Raises ExportError, UnsupportedError."""
    if sum(1 for _ in model.modules()) < _WORTH:
        jobs = 1
    tensors = _Tensors(model)
    tasks = [functools.partial(_exported, model, one, tensors, os.getpid()) for one in entries]
    return [
        tensors.unpacked(graph) if isinstance(graph, bytes) else graph
        for graphs in shared_out(tasks, jobs)
        for graph in graphs
    ]


def _exported(model: torch.nn.Module, one: EntryJob, tensors: "_Tensors", first: int) -> list[Exported] | list[bytes]:
    """The graphs of an entry point, packed where another process than the first one has made them."""
    graphs = export_buckets(model, one)
    stays = os.getpid() == first and not is_handed_over()
    return graphs if stays else [tensors.packed(graph) for graph in graphs]


class _Tensors:
    """Those that a model had before its export."""

    def __init__(self, model: torch.nn.Module):
        held = (*model.parameters(), *model.buffers(), *(tensor for _, tensor in hidden_tensors(model)))
        self._held = [tensor.detach() for tensor in held if _has_a_place(tensor)]
        self._numbers = {_place(tensor): number for number, tensor in enumerate(self._held)}
        self._memory = {tensor.untyped_storage().data_ptr() for tensor in self._held}

    def packed(self, one: Exported) -> bytes:
        """A graph, pickled. Raises what torch raises, and ValueError, where that cannot be."""
        from torch.fx._graph_pickler import GraphPickler, Options

        named = replace(one, constants=self._named(one.constants), states=self._named(one.states))
        return GraphPickler.dumps(named, Options(ops_filter=None, node_metadata_key_filter=None))

    def unpacked(self, content: bytes) -> Exported:
        """The graph, over the tensors of this process."""
        from torch.fx._graph_pickler import GraphPickler

        one: Any = GraphPickler.loads(content, FakeTensorMode(shape_env=ShapeEnv(), export=True))
        found: Exported = replace(one, constants=self._found(one.constants), states=self._found(one.states))
        return found

    def _named(self, tensors: Mapping[str, NamedTensor]) -> dict[str, Any]:
        return {placeholder: (one.name, self._reference(one.tensor)) for placeholder, one in tensors.items()}

    def _found(self, named: Mapping[str, Any]) -> dict[str, NamedTensor]:
        return {
            placeholder: NamedTensor(name, what if isinstance(what, torch.Tensor) else self._held[what])
            for placeholder, (name, what) in named.items()
        }

    def _reference(self, tensor: torch.Tensor) -> int | torch.Tensor:
        """The number of a tensor of the model; or the tensor itself, which the export has made."""
        if not _has_a_place(tensor):
            return tensor
        if (number := self._numbers.get(_place(tensor))) is not None:
            return number
        if tensor.untyped_storage().data_ptr() in self._memory:
            raise ValueError("a tensor that looks at a part of another cannot be handed over")
        return tensor


def _has_a_place(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.nbytes > 0


def _place(tensor: torch.Tensor) -> Place:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()
