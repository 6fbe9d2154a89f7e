"""Conjugate and negative views, as the values that they stand for: memory has no bit that says `read me otherwise`."""

import torch
from torch.fx.node import Node

from .fake import fake_mode, relay

_aten = torch.ops.aten
# What marks a tensor instead of computing, by what computes.
_PHYSICAL = {_aten._conj.default: _aten.conj_physical.default, _aten._neg_view.default: _aten.neg.default}
_RESOLVES = frozenset({_aten.resolve_conj.default, _aten.resolve_neg.default})


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy where it is a conjugate or negative view."""
    return tensor.resolve_conj().resolve_neg()


def resolve_views(module: torch.fx.GraphModule) -> None:
    """Let a graph without writes compute what its conjugate and negative views stand for, in place. Its placeholders
    are taken for resolved."""
    graph, changed = module.graph, False
    for node in list(graph.nodes):
        if node.op == "placeholder":
            changed |= _resolve_placeholder(node)
        elif node.target in _PHYSICAL:
            node.target, changed = _PHYSICAL[node.target], True
        elif node.target in _RESOLVES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            changed = True
    if changed:
        relay(graph)
        module.recompile()


def _resolve_placeholder(node: Node) -> bool:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or not (value.is_conj() or value.is_neg()):
        return False
    with fake_mode(node.graph):
        node.meta["val"] = resolved(value)
    return True
