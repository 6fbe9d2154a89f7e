"""An out-of-place op whose result is copied back into an input or a state writes there at once.

Export leaves `new = op(cache, …)` and, at the end, `copy_(cache, new)`. Where nobody reads the old values after `op`,
it becomes `op_(cache, …)`, and the copy of the tensor onto itself is removed. Chains of such ops go as a whole.
"""

import operator

import torch
from torch.fx.node import Node

from ..graph.alias import base, root, times_given
from ..graph.fake import fake_result
from ..graph.inplace import inplace_overload, is_reshape, same_layout, why_not_over
from ..graph.operand import operand
from ..graph.streams import several_streams
from ..target.target import Target
from .edits import Edits
from .multi_output import InplaceCall, form_of, results, to_inplace

_aten = torch.ops.aten
# A scatter into a view, and the view it writes through: `slice_scatter(x, s, …)` is `slice(x, …).copy_(s)`.
VIEW_OF_SCATTER: dict[torch.fx.node.Target, torch._ops.OpOverload] = {
    _aten.slice_scatter.default: _aten.slice.Tensor,
    _aten.select_scatter.default: _aten.select.int,
    _aten.diagonal_scatter.default: _aten.diagonal.default,
}
# A copy that an op wrote into needs not be one: auto-functionalised ops are decomposed into such.
_LINKS = frozenset({*VIEW_OF_SCATTER, _aten.clone.default})
_RESHAPES = frozenset(
    {
        _aten.view.default,
        _aten._unsafe_view.default,
        _aten.unsqueeze.default,
        _aten.squeeze.dim,
        _aten.squeeze.dims,
        _aten.transpose.int,
        _aten.permute.default,
        _aten.t.default,
    }
)


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    if several_streams(module.graph.nodes):
        edits.skipped("the graph has several streams")
        return
    graph = module.graph
    for node in list(graph.nodes):
        if (form := form_of(node)) is not None:
            _multi_output(graph, node, form, edits)
    write_in_place(graph, edits)


def write_in_place(graph: torch.fx.Graph, edits: Edits, only_through_views: bool = False) -> None:
    """Leave out every copy at the end that ops can make needless by writing there at once; with `only_through_views`
    those whose ops write into a view of the input."""
    done = -1
    while edits.count > done:  # what becomes a copy into a part of an input may be left out in its turn
        done = edits.count
        _leave_out_copies(graph, edits, only_through_views)


def _leave_out_copies(graph: torch.fx.Graph, edits: Edits, only_through_views: bool) -> None:
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in [n for n in graph.nodes if n.target is _aten.copy_.default]:
        target, value = operand(node), node.args[1]
        if target.op != "placeholder" or not isinstance(value, Node) or root(value) is target:
            continue
        links = _links(value, target)
        if only_through_views and not (links and _through_views(value, target)):
            continue
        if links is None:
            edits.declined(node, f"{value.name} is not made from {target.name} by ops that have an in-place form")
            continue
        why = _why_not(node, target, value, links, order) or _no_kernel(links, edits.target)
        if why:
            edits.declined(links[0], why)
        elif edits.may(links[0], f"writes into {target.name}"):
            for link in links:
                _convert(graph, link, order)
            node.replace_all_uses_with(target)
            graph.erase_node(node)


def _multi_output(graph: torch.fx.Graph, node: Node, form: InplaceCall, edits: Edits) -> None:
    """An op with several new values: each goes to the input whose old value it was given, or the op stays as it is."""
    overload, mutated = form
    news, kept = results(node), len(node.meta["val"]) - len(mutated)
    copies: list[Node] = []
    for number, position in enumerate(mutated):
        given = operand(node, position)
        target = _reshaped(given)
        parts = {same for part in news.get(kept + number, []) for same in _same_memory(part)}
        back = [user for part in parts for user in part.users if user.target is _aten.copy_.default]
        back = [copy for copy in back if copy.args[0] is target and _is_whole(copy.args[1], node, given)]
        why = _why_not_given_back(node, target, parts, back)
        if why:
            edits.declined(node, f"reinplace failed: {why}")
            return
        copies += back
    if edits.may(node, f"writes into {', '.join(operand(node, position).name for position in mutated)}"):
        for copy in copies:
            copy.replace_all_uses_with(operand(copy))
            graph.erase_node(copy)
        to_inplace(graph, node, overload, mutated)


def _reshaped(node: Node) -> Node:
    """What a node is another shape of; itself where it is none."""
    while _restates(node):
        node = operand(node)
    return node


def _is_whole(value: object, made_by: Node, given: Node) -> bool:
    """Whether a value is what `made_by` makes of `given`, in the shape of the input that this is another shape of: in
    the same memory, each number would lie in the same place."""
    if not isinstance(value, Node):
        return False
    source, target = _reshaped(value), _reshaped(given)
    if source.target is not operator.getitem or source.args[0] is not made_by:
        return False
    pairs = ((source, given), (value, target))
    return all(same_layout(one.meta["val"], other.meta["val"]) for one, other in pairs)


def _why_not_given_back(node: Node, target: Node, parts: set[Node], back: list[Node]) -> str:
    if target.op != "placeholder" or len(back) != 1:
        return f"its new value of {target.name} is not copied back into an input"
    memory, order = _same_memory(target), {n: number for number, n in enumerate(node.graph.nodes)}
    if sum(argument in memory for argument in node.all_input_nodes) > 1:
        return f"another argument shares the memory of {target.name}"
    late = [user for n in memory for user in n.users if order[user] > order[node] and user not in memory]
    late = [user for user in late if user is not back[0]]
    if late:
        return f"{late[0].name} uses the old value of {target.name} later"
    if any(user.op == "output" for part in parts for user in part.users):
        return f"its new value of {target.name} is returned too"
    return ""


def _links(value: Node, target: Node) -> list[Node] | None:
    """The ops that make `value` from `target`, one after the other, earliest first; None where it is not so made."""
    links: list[Node] = []
    node = value
    while node is not target:
        if node.target in _LINKS or inplace_overload(node.target) is not None:
            links.append(node)
        elif base(node) is None or not (_restates(node) or _is_inplace(node)):
            return None
        source = node.args[0]
        if not isinstance(source, Node):
            return None
        node = source
    return links[::-1] or None


def _through_views(value: Node, target: Node) -> bool:
    """Whether a view, or a scatter into one, lies between the input and its new value."""
    while value is not target:
        if value.target in VIEW_OF_SCATTER or _restates(value):
            return True
        value = operand(value)
    return False


def _restates(node: Node) -> bool:
    return node.target in _RESHAPES or (node.target is _aten.as_strided.default and is_reshape(node))


def _is_inplace(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _why_not(copy: Node, target: Node, value: Node, links: list[Node], order: dict[Node, int]) -> str:
    if not same_layout(value.meta["val"], target.meta["val"]):
        return f"{value.name} and {target.name} do not lie in memory alike"
    memory = everything = _same_memory(target)
    chain = {*links, copy}
    for link in links:
        old = operand(link)
        if why := why_not_over(link, old):
            return why
        for other in (n for n in link.all_input_nodes if n is not old):
            if other in everything:
                return f"another argument of {link.name} shares the memory of {target.name}"
        if times_given(link, old) > 1:
            return f"{link.name} is given {old.name} twice"
        late = [user for node in memory for user in node.users if user not in chain and order[user] > order[link]]
        late = [user for user in late if user not in memory]
        if late:
            return f"{late[0].name} uses the old value of {target.name} later"
        memory = _same_memory(link)
        everything = everything | memory
    if any(user.op == "output" for node in memory for user in node.users):
        return f"what {links[-1].name} makes is returned too"
    return ""


def _no_kernel(links: list[Node], target: Target) -> str:
    overloads = [inplace_overload(link.target) for link in links if link.target not in _LINKS]
    lacking = [overload for overload in overloads if overload is not None and not target.takes(overload)]
    return f"{target.kind} has no kernel for {lacking[0]}" if lacking else ""


def _same_memory(start: Node) -> set[Node]:
    """The node and everything that looks at its memory."""
    found, waiting = set(), [start]
    while waiting:
        node = waiting.pop()
        found.add(node)
        waiting += [user for user in node.users if base(user) is node and user not in found]
    return found


def _convert(graph: torch.fx.Graph, link: Node, order: dict[Node, int]) -> None:
    """Let the link write in place; what is put there instead of it has its place in the order."""
    if link.target is _aten.clone.default:
        link.replace_all_uses_with(operand(link))
        graph.erase_node(link)
        return
    if link.target not in VIEW_OF_SCATTER:
        overload = inplace_overload(link.target)
        assert overload is not None  # it would be no link
        link.target = overload
        return
    into, (_, source, *where) = operand(link), link.args
    with graph.inserting_before(link):
        part = graph.call_function(VIEW_OF_SCATTER[link.target], (into, *where), dict(link.kwargs))
        part.meta.update(link.meta)
        part.meta["val"] = fake_result(link.meta["val"].fake_mode, part.target, part.args, dict(part.kwargs))
        written = graph.call_function(_aten.copy_.default, (part, source))
        written.meta.update(part.meta)
    order[part] = order[written] = order[link]
    link.replace_all_uses_with(into)
    graph.erase_node(link)
