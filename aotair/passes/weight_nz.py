"""Weights of matrix products are read in Ascend's format NZ, where the kernel takes it.

Works on the graph of one bucket, where composites are kernels. The graph stays as it is: products are marked, and a
node casts their weights when it loads.
"""

import torch
from torch.fx.node import Node
from torch.utils._pytree import tree_leaves

from ..graph.derived import is_constant
from ..graph.fake import storage_of, tensors_of
from ..graph.packed import mark_packed
from ..target.nz import KERNELS, WITHOUT, NzKernel, block
from .edits import Edits


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    if edits.target.kind != "npu":
        edits.skipped("the target is no NPU")
    elif not edits.target.packs:
        edits.skipped("the recipe has target.pack_weights: false")
    else:
        for node in module.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                _mark(node, node.target.name(), edits)


def _mark(node: Node, name: str, edits: Edits) -> None:
    if name in WITHOUT and _weights(node, WITHOUT[name][0]):
        edits.declined(node, WITHOUT[name][1])
    elif name in KERNELS:
        kernel = KERNELS[name]
        weights = [_weights(node, place) for place in kernel.places]
        if not any(weights):
            return
        if why := next(filter(None, (_why_not(node, one, kernel) for one in weights)), ""):
            edits.declined(node, why)
        elif edits.may(node, f"its weight is read in NZ ({kernel.name})"):
            mark_packed(node, kernel.places)


def _weights(node: Node, place: int) -> list[Node]:
    """The factors at a place of a call, where some of them lie in constants."""
    given = node.args[place] if place < len(node.args) else None
    found = [item for item in (given if isinstance(given, (list, tuple)) else [given]) if isinstance(item, Node)]
    return found if any(_stored(item) is not None for item in found) else []


def _stored(view: Node) -> torch.Tensor | None:
    """The constant that a node is, or is a view of."""
    storage = storage_of(view.meta["val"])
    constants = (n for n in view.graph.find_nodes(op="placeholder") if is_constant(n))
    return next((n.meta["val"] for n in constants if storage_of(n.meta["val"]) == storage), None)


def _why_not(node: Node, weights: list[Node], kernel: NzKernel) -> str:
    """Why the kernel does not take the weight in NZ; empty where it does."""
    if not weights:
        return f"{kernel.name} takes all its weights in NZ, and calls bring one of them"
    if len(weights) > 1:
        return "it has a list of several weights"
    value: torch.Tensor = weights[0].meta["val"]
    if why := _beside(node, value.dtype, kernel):
        return why
    if value.dtype not in kernel.dtypes:
        return f"{kernel.name} takes no weight of {_name(value.dtype)}"
    if value.dim() != kernel.dims:
        return f"{kernel.name} takes a weight of {kernel.dims} dimensions"
    if min(value.shape[-2:]) < 2 or not value.numel():
        return f"{kernel.name} takes no weight of one row or column"
    turned = not value.is_contiguous()
    seen, stored = value.mT if turned else value, _stored(weights[0])
    if stored is None or not stored.is_contiguous() or (seen.shape, seen.stride()) != (stored.shape, stored.stride()):
        return "its weight is a part of a constant, or is seen in another shape"
    if turned and not kernel.turned:
        return f"{kernel.name} takes no transposed weight: store it as it is read"
    return _wrong_size(seen, kernel)


def _beside(node: Node, kind: torch.dtype, kernel: NzKernel) -> str:
    """Why the kernel does not take what else the call has beside a weight of this dtype."""
    if beside := [name for name in kernel.without if node.kwargs.get(name)]:
        return f"{kernel.name} takes no {beside[0]} beside a weight of {_name(kind)}"
    biases = {item.meta["val"].dtype for item in tree_leaves(node.kwargs.get("bias")) if isinstance(item, Node)}
    wanted = dict(kernel.bias).get(kind)
    if wanted is not None and biases - {wanted}:
        return f"{kernel.name} takes a bias of {_name(wanted)} beside a weight of {_name(kind)}"
    results = {value.dtype for _, value in tensors_of(node.meta["val"])}
    if kernel.results and results - {*kernel.results}:
        return f"{kernel.name} gives results of {' or '.join(map(_name, kernel.results))}"
    return ""


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _wrong_size(stored: torch.Tensor, kernel: NzKernel) -> str:
    rows, columns = stored.shape[-2:]
    if kernel.most is not None and columns > kernel.most:
        return f"{kernel.name} takes at most {kernel.most} columns"
    high, wide = block(stored.dtype)
    if kernel.whole_blocks and (rows % high or columns % wide):
        return f"{kernel.name} takes rows and columns that {high} and {wide} divide"
    return ""
