"""Intermediate out-of-place ops become in-place: `add(x, y)` writes into x where nobody reads x afterwards.

Of two that may be swapped, a sum or a product writes into the one that was made last: it is in the processor's cache,
and the kernel that makes it may do the sum as well.
"""

import torch
from torch.fx.node import Node

from ..graph.alias import Uses, times_given
from ..graph.inplace import inplace_overload, overlaps, why_not_over
from ..graph.operand import operand, operands
from ..graph.streams import several_streams
from .edits import Edits
from .multi_output import InplaceCall, form_of, results, to_inplace

_aten = torch.ops.aten
_COMMUTE = frozenset({_aten.add.Tensor, _aten.mul.Tensor})


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    if several_streams(module.graph.nodes):
        edits.skipped("the graph has several streams")
        return
    uses = Uses(module.graph)
    for node in list(module.graph.nodes):
        if (form := form_of(node)) is not None:
            _multi_output(module.graph, node, form, uses, edits)
            continue
        overload = inplace_overload(node.target)
        if overload is None or not isinstance(node.args[0], Node):
            continue
        _put_last_first(node, uses)
        assert isinstance(node.args[0], Node)
        why = _why_not(node, node.args[0], uses)
        if not edits.target.takes(overload):
            why = f"{edits.target.kind} has no kernel for {overload} that programs may call"
        if why:
            edits.declined(node, why)
        elif edits.may(node, f"writes into {node.args[0].name}"):
            node.target = overload
            uses.merge(node, node.args[0])


def _put_last_first(node: Node, uses: Uses) -> None:
    """Swap two arguments that may be, where the second was made later and can be written over."""
    if node.target not in _COMMUTE or len(node.args) != 2 or node.kwargs:
        return
    one, other = node.args
    if not isinstance(one, Node) or not isinstance(other, Node):
        return
    if not all(isinstance(given.meta["val"], torch.Tensor) for given in (one, other)):  # not a size
        return
    if one.meta["val"].dtype != other.meta["val"].dtype:
        return
    later = uses.position[uses.root(other)] > uses.position[uses.root(one)]
    if later and not _why_not(node, other, uses):
        node.args = (other, one)


def _multi_output(graph: torch.fx.Graph, node: Node, form: InplaceCall, uses: Uses, edits: Edits) -> None:
    overload, mutated = form
    targets = [operand(node, position) for position in mutated]
    why = next(filter(None, (_why_not_written(node, target, uses) for target in targets)), "")
    if why:
        edits.declined(node, why)
    elif edits.may(node, f"writes into {', '.join(target.name for target in targets)}"):
        news = results(node)
        kept = len(node.meta["val"]) - len(mutated)
        for number, target in enumerate(targets):
            for part in news.get(kept + number, ()):
                uses.merge(part, target)
        to_inplace(graph, node, overload, mutated)


def _why_not(node: Node, target: Node, uses: Uses) -> str:
    if operands(node.graph.output_node()).count(node) > 1:
        return "the result is returned more than once"
    return _why_not_written(node, target, uses) or why_not_over(node, target)


def _why_not_written(node: Node, target: Node, uses: Uses) -> str:
    """Why the op may not write into `target`."""
    owner = uses.root(target)
    if owner.op == "placeholder":
        return f"{target.name} is an input, a parameter, or looks at one"
    if uses.last(target) > uses.position[node]:
        return f"{target.name}, or what shares its memory, is used later"
    others = [n for n in node.all_input_nodes if n is not target]
    if any(uses.root(other) is owner for other in others) or times_given(node, target) > 1:
        return f"another argument shares the memory of {target.name}"
    return f"elements of {target.name} share memory" if overlaps(target) else ""
