"""Products of one input with several weights of four or eight bits are one product with all of them, on the CPU.

Query, key and value of an attention read one input, and so do gate and up: their kernels for few rows take as long to
be called as to multiply. The weights, one below the other, follow from the checkpoint's and are stored instead of them;
each reader gets its part of the result, which is cast once for all. What is written over stays apart, as it may be
another when the next product reads it; and products of floats, which gain little so (`benchmarks.merged`).
"""

from collections.abc import Iterator, Sequence

import torch
from torch.fx.node import Argument, Node

from aotair_runtime.devices import int8_rows

from ..graph.alias import why_written, written_roots
from ..graph.fake import relay
from ..graph.layers import Writer
from ..graph.operand import op_of, operand
from ..ops import int4
from .edits import Edits
from .fold_constants import constant_nodes

_aten = torch.ops.aten
# By op: the places of its constants, with the dimension along which each has the outputs.
_CONSTANTS = {int4.OP: ((1, 0), (3, 1)), int8_rows.OP: ((1, 0), (2, 0))}


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    graph = module.graph
    constants, written = constant_nodes(graph), written_roots(graph)
    merged = False
    for products in list(_alike(graph)):
        reasons = {node: why_written(node, written) or _why_not(node, constants) for node in products}
        for node, why in reasons.items():
            if why:
                edits.declined(node, why)
        whole = [node for node in products if not reasons[node]]
        if len(whole) > 1 and edits.may(whole[0], f"multiplied together with {_names(whole[1:])}"):
            _merge(whole, constants)
            merged = True
    if merged:
        relay(graph)


def _alike(graph: torch.fx.Graph) -> Iterator[list[Node]]:
    """Products that read the same, in groups of the same size, in order."""
    found: dict[tuple[object, ...], list[Node]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _CONSTANTS:
            group = node.args[2] if node.target is int4.OP else None
            found.setdefault((node.target, operand(node), group), []).append(node)
    yield from (nodes for nodes in found.values() if len(nodes) > 1)


def _why_not(node: Node, constants: set[Node]) -> str:
    return "" if constants.issuperset(_weights(node)) else "its weight depends on the call"


def _weights(node: Node) -> list[Node]:
    return [operand(node, place) for place, _ in _CONSTANTS[op_of(node)]]


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(node.name for node in nodes)


def _merge(products: Sequence[Node], constants: set[Node]) -> None:
    first = products[0]
    _move_before(first, [one for node in products[1:] for one in _weights(node)], constants)
    write = Writer(first, first, set())
    args: list[Argument] = list(first.args)
    for place, dim in _CONSTANTS[op_of(first)]:
        args[place] = write.call(_aten.cat.default, [operand(node, place) for node in products], dim)
    made, start = write.call(op_of(first), *args), 0
    casts = [_only_cast(node) for node in products]
    kinds = {str(cast.kwargs) for cast in casts if cast is not None}
    if all(cast is not None for cast in casts) and len(kinds) == 1:
        assert casts[0] is not None
        made = write.call(_aten._to_copy.default, made, **casts[0].kwargs)
        readers = [cast for cast in casts if cast is not None]
    else:
        readers = list(products)
    for node, reader in zip(products, readers):
        end = start + node.meta["val"].shape[1]
        reader.replace_all_uses_with(write.call(_aten.slice.Tensor, made, 1, start, end))
        start = end
    for node in dict.fromkeys((*readers, *products)):
        node.graph.erase_node(node)


def _only_cast(node: Node) -> Node | None:
    """The one reader of a product, where that casts it."""
    reader = next(iter(node.users)) if len(node.users) == 1 else None
    is_cast = reader is not None and reader.target is _aten._to_copy.default and reader.kwargs.keys() == {"dtype"}
    return reader if is_cast else None


def _move_before(place: Node, wanted: Sequence[Node], constants: set[Node]) -> None:
    """Let constants be computed before `place`."""
    needed, left = set[Node](), list(wanted)
    while left:
        node = left.pop()
        if node.op == "call_function" and node in constants and node not in needed:
            needed.add(node)
            left += node.all_input_nodes
    order = list(place.graph.nodes)
    before = set(order[: order.index(place)])
    for node in order:
        if node in needed and node not in before:
            place.prepend(node)
