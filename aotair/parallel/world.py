"""A process group of which only one rank is there, so that a model that calls collectives itself can be made and traced
for that rank; and its collectives as those of a program."""

import contextlib
import contextvars
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.fx.node import Node

from aotair_runtime.devices import collectives as _collectives  # noqa: F401 (defines the ops)
from aotair_runtime.format.mesh import ranks_of
from aotair_runtime.format.schema import Axis

from ..errors import ModelError, UnsupportedError
from ..graph.fake import copy_first, relay
from ..graph.operand import operand

Make = Callable[[object], torch.nn.Module]  # a factory, with the mesh as its only argument
# By the name of a group, within a world: its axis.
_axes: contextvars.ContextVar[Mapping[str, Axis]] = contextvars.ContextVar("axes")
_NAMESPACE = "_c10d_functional"
_COLLECTIVES = frozenset(
    getattr(torch.ops.air, name).default for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
)


@contextlib.contextmanager
def world(mesh: Sequence[Axis], rank: int, where: str) -> Iterator[DeviceMesh]:
    """Within, this process is that rank of the mesh; whatever it says to others is heard by nobody."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise ModelError(
            "mesh: this process has a process group already, and a build needs a pretended one",
            where=where,
            fix="build in a process of its own, before torch.distributed.init_process_group",
        )
    hook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks_of(mesh))
    try:
        names = tuple(axis.name for axis in mesh)
        made = init_device_mesh("cpu", tuple(axis.size for axis in mesh), mesh_dim_names=names)
        token = _axes.set({str(made.get_group(axis.name).group_name): axis for axis in mesh})
        try:
            yield made
        finally:
            _axes.reset(token)
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook  # torch's own says of every error which rank has it


def in_own_words(graph: torch.fx.Graph, where: str) -> None:
    """Say functional collectives of torch as those of a program, which are done when they return. Raises
    UnsupportedError for one that programs do not have."""
    rewritten = False
    for node in list(graph.nodes):
        op = node.target
        if node.op != "call_function" or getattr(op, "namespace", "") != _NAMESPACE:
            continue
        name = op._schema.name.partition("::")[2]
        if name == "wait_tensor":
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif name in _WORDS:
            with graph.inserting_before(node):
                made = _WORDS[name](graph, node, _axis(node, where))
            made.meta.update(node.meta)
            node.replace_all_uses_with(made)
            graph.erase_node(node)
            rewritten = True
        else:
            raise UnsupportedError(
                f"the model calls the collective {name}",
                where=where,
                expected=", ".join(_WORDS),
                fix="write it with these",
            )
    if rewritten:
        relay(graph, _row_by_row)


def _row_by_row(node: Node) -> None:
    """Let a collective take a copy of what has gaps, or lies in another order."""
    if node.target in _COLLECTIVES and not operand(node).meta["val"].is_contiguous():
        copy_first(node)


def _axis(node: Node, where: str) -> Axis:
    """The axis of the mesh that a collective's group is."""
    axes, group = _axes.get({}), node.args[-1]
    found = axes.get(str(group))
    if found is None:
        raise UnsupportedError(
            f"the model calls {node.target} with a group that is no axis of the mesh",
            where=where,
            expected=", ".join(axis.name for axis in axes.values()) or "mesh: {NAME: RANKS} in the recipe",
            got=repr(group)[:80],
            fix="take the mesh that the factory is given: (mesh, 0), or mesh.get_group(NAME)",
        )
    return found


def _all_reduce(graph: torch.fx.Graph, node: Node, axis: Axis) -> Node:
    x, reduce, _ = node.args
    if reduce != "avg":
        return graph.call_function(torch.ops.air.all_reduce.default, (x, reduce, axis.name))
    total = graph.call_function(torch.ops.air.all_reduce.default, (x, "sum", axis.name))
    total.meta.update(node.meta)
    return graph.call_function(torch.ops.aten.div.Tensor, (total, axis.size))


def _all_gather(graph: torch.fx.Graph, node: Node, axis: Axis) -> Node:
    return graph.call_function(torch.ops.air.all_gather.default, (node.args[0], axis.size, axis.name))


def _reduce_scatter(graph: torch.fx.Graph, node: Node, axis: Axis) -> Node:
    x, reduce, *_ = node.args
    return graph.call_function(torch.ops.air.reduce_scatter.default, (x, reduce, axis.size, axis.name))


def _all_to_all(graph: torch.fx.Graph, node: Node, axis: Axis) -> Node:
    x, out_splits, in_splits, _ = node.args
    assert isinstance(out_splits, (list, tuple)) and isinstance(in_splits, (list, tuple)), "of the op's schema"
    splits = [*map(str, out_splits), *map(str, in_splits)]
    if len(set(splits)) > 1:
        raise UnsupportedError(
            "the model exchanges parts of several lengths (all_to_all_single)",
            expected="as many rows from each rank as to it",
            got=", ".join(splits),
        )
    return graph.call_function(torch.ops.air.all_to_all.default, (x, axis.size, axis.name))


_WORDS: Mapping[str, Callable[[torch.fx.Graph, Node, Axis], Node]] = {
    "all_reduce": _all_reduce,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "all_to_all_single": _all_to_all,
}
