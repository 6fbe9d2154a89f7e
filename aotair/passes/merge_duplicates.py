"""Compute once what a graph computes several times: calls of the same op with the same arguments.

Left alone: ops that write, draw random numbers or have no result; results that are written into, or that are made of
memory that is; what is returned, because callers may write into that; calls on different streams.
"""

import operator

import torch
from torch.fx.node import Node

from ..graph.alias import root, written_roots
from ..graph.operand import operands
from ..ops.air import is_marker
from .edits import Edits
from .streams import labels


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    graph = module.graph
    streams = labels(graph)
    shared = written_roots(graph) | {root(node) for node in operands(graph.output_node())}
    first: dict[tuple[object, ...], Node] = {}
    for node in list(graph.nodes):
        if not is_pure(node):
            continue
        key = (node.target, _key(node.args), _key(node.kwargs), streams.get(node, 0))
        known = first.setdefault(key, node)
        if known is node:
            continue
        if shared.intersection(map(root, (node, known, *node.all_input_nodes))):
            edits.declined(node, f"it is {known.name}, but its memory, or an argument's, is returned or written into")
        elif edits.may(node, f"is {known.name}"):
            node.replace_all_uses_with(known)
            graph.erase_node(node)


def is_pure(node: Node) -> bool:
    op = node.target
    if op is operator.getitem:
        return True
    if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload):
        return False
    seeded = torch.Tag.nondeterministic_seeded in op.tags
    return not op._schema.is_mutable and bool(op._schema.returns) and not seeded and not is_marker(op)


def _key(value: object) -> object:
    """A value as something to compare: 1, 1.0 and True are different arguments."""
    if isinstance(value, Node):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(value[name])) for name in sorted(value))
    return (type(value).__name__, str(value))
