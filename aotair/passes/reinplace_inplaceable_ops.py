"""Intermediate out-of-place ops become in-place: `add(x, y)` writes into x where nobody reads x afterwards."""

import torch
from torch.fx.node import Node

from ..graph.alias import Uses
from ..graph.inplace import inplace_overload, why_not_over
from .edits import Edits
from .streams import several_streams


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    if several_streams(module.graph.nodes):
        edits.skipped("the graph has several streams")
        return
    uses = Uses(module.graph)
    returned = list(module.graph.output_node().args[0])
    for node in list(module.graph.nodes):
        overload = inplace_overload(node.target)
        if overload is None or not isinstance(node.args[0], Node):
            continue
        why = _why_not(node, node.args[0], uses, returned)
        if not edits.target.runs(overload):
            why = f"{edits.target.kind} has no kernel for {overload}"
        if why:
            edits.declined(node, why)
        elif edits.may(node, f"writes into {node.args[0].name}"):
            node.target = overload
            uses.merge(node, node.args[0])


def _why_not(node: Node, target: Node, uses: Uses, returned: list[Node]) -> str:
    owner = uses.root(target)
    if owner.op == "placeholder":
        return f"{target.name} is an input, a parameter, or looks at one"
    if uses.last(target) > uses.position[node]:
        return f"{target.name}, or what shares its memory, is used later"
    others = [n for n in node.all_input_nodes if n is not target]
    if any(uses.root(other) is owner for other in others) or _given_twice(node, target):
        return f"another argument shares the memory of {target.name}"
    if returned.count(node) > 1:
        return "the result is returned more than once"
    return why_not_over(node, target)


def _given_twice(node: Node, target: Node) -> bool:
    given: list[object] = []
    torch.fx.node.map_arg((node.args, node.kwargs), given.append)
    return given.count(target) > 1
