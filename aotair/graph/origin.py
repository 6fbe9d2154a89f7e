"""Where a call comes from: the user's line, the module of the model, and the passes that made it."""

from collections.abc import Iterator, Mapping

import torch
from torch.fx.node import Node, Target

from .user_line import source

_LINE, _MODULES, _PASSES = "stack_trace", "nn_module_stack", "made_by"  # keys of a node's meta
SPECIALISE = "specialise"  # what puts a bucket's sizes in, and takes apart what has no kernel
EXPORTED = "export"  # what made the calls that no pass did


def copied(like: Node) -> dict[str, object]:
    """What says where a call comes from, as meta for one that is made on its behalf."""
    return {key: like.meta[key] for key in (_LINE, _MODULES, _PASSES) if like.meta.get(key)}


def made_by(origin: Mapping[str, object], name: str) -> dict[str, object]:
    """The same origin, with one more pass at its end."""
    passes = origin.get(_PASSES, ())
    assert isinstance(passes, tuple)
    return {**origin, _PASSES: passes if passes[-1:] == (name,) else (*passes, name)}


def line_of(node: Node) -> str:
    """`model.py:12, in forward`; empty where it is not known."""
    return source(node).strip(" ()")


def module_of(node: Node) -> str:
    """The path of the innermost module whose forward made the call, as `encoder.layer.0`, `.` for the model itself;
    empty where it is not known."""
    modules = node.meta.get(_MODULES)
    if not modules:
        return ""
    innermost = list(modules.values())[-1]
    path = innermost[0] if isinstance(innermost, tuple) else str(innermost)
    return str(path).removeprefix("L['self']").removeprefix(".") or "."


def passes_of(node: Node) -> str:
    """The passes that made the call one after another, with commas between them; `export` where none did."""
    return ", ".join(node.meta.get(_PASSES, ())) or EXPORTED


def calls(graph: torch.fx.Graph) -> dict[Node, Target]:
    """The calls as they are now, to be compared with later."""
    return {node: node.target for node in graph.nodes if node.op == "call_function"}


def mark(graph: torch.fx.Graph, before: Mapping[Node, Target], name: str) -> None:
    """Say of each call that was not there `before`, or called something else, that the pass `name` made it."""
    for node in graph.nodes:
        if node.op == "call_function" and before.get(node) != node.target:
            node.meta |= made_by(node.meta, name)
    complete(graph)


def complete(graph: torch.fx.Graph) -> None:
    """Give calls without a line or a module those of the nearest call that they read, or else that reads them."""
    for key in (_LINE, _MODULES):
        lacking = [node for node in graph.nodes if node.op == "call_function" and not node.meta.get(key)]
        for node in lacking:
            _take(node, key, iter(node.all_input_nodes))
        for node in reversed(lacking):
            if not node.meta.get(key):
                _take(node, key, iter(node.users))


def _take(node: Node, key: str, others: Iterator[Node]) -> None:
    found = next((other.meta[key] for other in others if other.meta.get(key)), None)
    if found is not None:
        node.meta[key] = found
