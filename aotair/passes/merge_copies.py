"""What is copied twice is copied once: straight into the part of an input, state or buffer where it ends.

A write into a slice, `cache[:, 5:6] = new`, is exported as a copy of the slice, a scatter of it into the whole, and a
copy of the whole; the pass before leaves a copy into the slice. The first copy, and scatters into parts of parts, are
left out here: each takes memory of its own, as much as the whole where it lies in memory as the slice does.
"""

from collections.abc import Iterator

import torch
from torch.fx.node import Node

from ..graph.alias import base, root, written_by
from ..graph.fake import fake_result
from ..graph.operand import operand
from ..graph.streams import several_streams
from .edits import Edits
from .reinplace_input_mutated_ops import VIEW_OF_SCATTER

_aten = torch.ops.aten


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    graph = module.graph
    if several_streams(graph.nodes):
        edits.skipped("the graph has several streams")
        return
    for node in [n for n in graph.nodes if n.target is _aten.copy_.default]:
        while isinstance(node.args[1], Node) and (made := _merged(graph, node, edits)) is not None:
            node = made


def _merged(graph: torch.fx.Graph, node: Node, edits: Edits) -> Node | None:
    """The copy that does what `node` did with one step less, or None where there is none."""
    value = operand(node, 1)
    if value.target is _aten.copy.default:
        return _from_the_source(node, value, edits)
    if value.target in VIEW_OF_SCATTER:
        return _into_the_part(graph, node, value, edits)
    return None


def _from_the_source(node: Node, value: Node, edits: Edits) -> Node | None:
    """`copy_(target, copy(_, source))` as `copy_(target, source)`."""
    target, source = operand(node), operand(value, 1)
    if target.meta["val"].dtype != value.meta["val"].dtype or len(value.args) > 2 or value.kwargs:
        return None
    why = _shared(source, target) or _why_not(node, value, source)
    if why:
        edits.declined(node, why)
        return None
    if not edits.may(node, f"copies {source.name} without {value.name} between"):
        return None
    node.args = (target, source)
    return node


def _into_the_part(graph: torch.fx.Graph, node: Node, value: Node, edits: Edits) -> Node | None:
    """`copy_(target, scatter(target, source, where))` as `copy_(view(target, where), source)`."""
    target = operand(node)
    into, source, *where = value.args
    if not _same_view(into, target) or not isinstance(source, Node) or node.users:
        return None
    view, kwargs = VIEW_OF_SCATTER[value.target], dict(value.kwargs)
    if why := _why_not(node, value, target):
        edits.declined(node, why)
        return None
    if source.target is view and list(source.args[1:]) == where and source.kwargs == kwargs:
        if _same_view(source.args[0], target) and edits.may(node, "copies a part onto itself"):
            graph.erase_node(node)
        return None
    if why := _shared(source, target) or _why_not(node, value, source):
        edits.declined(node, why)
        return None
    if not edits.may(node, f"writes {source.name} into a part of {target.name}"):
        return None
    with graph.inserting_before(node):
        part = graph.call_function(view, (target, *where), kwargs)
        part.meta.update(value.meta)
        part.meta["val"] = fake_result(target.meta["val"].fake_mode, view, part.args, kwargs)
        made = graph.call_function(_aten.copy_.default, (part, source))
        made.meta.update(node.meta)
        made.meta["val"] = part.meta["val"]
    graph.erase_node(node)
    return made


def _shared(source: Node, target: Node) -> str:
    """Why one may not be copied straight into the other: what is copied first would be read later."""
    return f"{source.name} shares the memory of {target.name}" if root(source) is root(target) else ""


def _why_not(node: Node, value: Node, source: Node) -> str:
    """Why `node` may not read what `value` read of `source`: it may have been written since."""
    writer = next((n for n in _between(value, node) if any(root(w) is root(source) for w in written_by(n))), None)
    return "" if writer is None else f"{writer.name} writes the memory of {source.name} before"


def _between(first: Node, last: Node) -> Iterator[Node]:
    node = first.next
    while node is not last:
        yield node
        node = node.next


def _same_view(one: object, other: object) -> bool:
    """Whether two nodes are one, or look at the same part of the same memory in the same way."""
    if one is other:
        return True
    if not isinstance(one, Node) or not isinstance(other, Node) or base(one) is None or one.target != other.target:
        return False
    reads = not one.target._schema.is_mutable if isinstance(one.target, torch._ops.OpOverload) else False
    same = one.args[1:] == other.args[1:] and one.kwargs == other.kwargs
    return reads and same and _same_view(one.args[0], other.args[0])
