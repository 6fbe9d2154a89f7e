"""A copy of a tensor onto itself does nothing: what is left of a mutation when an op writes in place already."""

import torch
from torch.fx.node import Node

from ..graph.alias import base
from .edits import Edits


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    for node in list(module.graph.nodes):
        if node.target is not torch.ops.aten.copy_.default:
            continue
        target, value = node.args[0], node.args[1]
        if _is(value, target) and edits.may(node, "copies a tensor onto itself"):
            node.replace_all_uses_with(target)
            module.graph.erase_node(node)


def _is(value: object, target: Node) -> bool:
    """Whether `value` is `target` itself, perhaps after ops that wrote into it."""
    while isinstance(value, Node) and value is not target:
        writes = isinstance(value.target, torch._ops.OpOverload) and value.target._schema.is_mutable
        value = base(value) if writes else None
    return value is target
