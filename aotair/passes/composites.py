"""Composites that stay whole here, as the calls that TorchAir shows instead; and put together again where those calls
are as they were made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import Argument, Node, Target, map_arg

from ..fusion.kept import kept_as
from ..graph.fake import fake_mode, quiet_torch, recompute
from ..graph.paste import as_function, paste
from ..graph.streams import launches
from ..ops.air import is_marker

_aten = torch.ops.aten
# What torch's tracing takes apart on every device in the same way. Attention and recurrent layers stay: what these
# become depends on the device.
TAKEN_APART = frozenset(
    {_aten.linear.default, _aten.layer_norm.default, _aten.rms_norm.default, _aten.group_norm.default}
)
Call = tuple[Node, Target, tuple[Argument, ...], Mapping[str, Argument]]  # a node, and what it calls with what


@dataclass(frozen=True, eq=False)
class Group:
    """The calls that stand for a composite, each as it was made, and the composite itself. The last of them is the
    result."""

    target: torch._ops.OpOverload
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    name: str
    meta: Mapping[str, object]
    calls: Sequence[Call]

    @property
    def nodes(self) -> list[Node]:
        return [call[0] for call in self.calls]


def expand(graph: torch.fx.Graph, *, plain: bool = False) -> list[Group]:
    """Take every composite apart, in place. `plain`: without calls that change nothing, as patterns are traced."""
    found = [node for node in graph.nodes if node.target in TAKEN_APART]
    return [_taken_apart(node, plain) for node in found]


def fold(graph: torch.fx.Graph, groups: Sequence[Group]) -> int:
    """Put together again what nobody has changed, uses inside, or divides by a write, a stream or an event; gives how
    many these were. The others stay apart."""
    position, region, border = {}, {}, 0
    for number, node in enumerate(graph.nodes):
        border += _is_border(node)
        position[node], region[node] = number, border
    names = {node.name for node in graph.nodes}
    done = 0
    for group in reversed(groups):  # a later one takes the result of an earlier one as it is now
        place = _place(group, position, region)
        if place is not None:
            _put_together(graph, group, place, names)
            done += 1
    if done:
        recompute(graph)
    return done


def _is_border(node: Node) -> bool:
    op = node.target
    return isinstance(op, torch._ops.OpOverload) and (op._schema.is_mutable or is_marker(op))


# ---- apart ---------------------------------------------------------------------------------------------------------


def _taken_apart(node: Node, plain: bool) -> Group:
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)  # one of TAKEN_APART
    body, given = _body(node, op)
    if plain:
        _drop_what_changes_nothing(body.graph)
    made, result = paste(body, node, given)
    assert isinstance(result, Node)  # each of TAKEN_APART has one
    calls: list[Call] = [(call, call.target, call.args, call.kwargs) for call in made]
    calls.sort(key=lambda call: call[0] is result)
    group = Group(op, node.args, node.kwargs, node.name, dict(node.meta), tuple(calls))
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)
    return group


def _body(node: Node, op: torch._ops.OpOverload) -> tuple[torch.fx.GraphModule, list[Node]]:
    """The calls that torch's tracing makes of a composite, and the nodes that their placeholders stand for."""
    run, given = as_function(node, op)
    with fake_mode(node.graph), torch.no_grad(), quiet_torch(), enable_python_dispatcher():
        made = make_fx(dispatch_functionalize(run))(*(one.meta["val"] for one in given))
    made.graph.eliminate_dead_code()
    return made, given


def _drop_what_changes_nothing(graph: torch.fx.Graph) -> None:
    from torch._inductor.fx_passes.post_grad import remove_noop_ops

    remove_noop_ops(graph)
    graph.eliminate_dead_code()


# ---- together ------------------------------------------------------------------------------------------------------


def _place(group: Group, position: Mapping[Node, int], region: Mapping[Node, int]) -> Node | None:
    """The call in whose place the composite may stand, or nothing."""
    inside = set(group.nodes)
    for node, *call in group.calls:
        if node._erased or call != [node.target, node.args, node.kwargs]:
            return None
    *inner, result = group.nodes
    if any(user not in inside for node in inner for user in node.users):
        return None
    work = [node for node in group.nodes if launches(node) and not isinstance(node.meta["val"], torch.SymInt)]
    if len({region[node] for node in work}) > 1:
        return None
    place = max(work or [result], key=position.__getitem__)
    needs: list[Node] = []
    map_arg((group.args, dict(group.kwargs)), needs.append)
    return place if all(not node._erased and position[node] < position[place] for node in needs) else None


def _put_together(graph: torch.fx.Graph, group: Group, place: Node, names: set[str]) -> None:
    with graph.inserting_before(place):
        node = graph.call_function(group.target, group.args, dict(group.kwargs))
    node.meta = dict(group.meta)
    kept_as(node, group.nodes)
    if group.name not in names:
        node.name = group.name
    names.add(node.name)
    *inner, result = group.nodes
    result.replace_all_uses_with(node)
    for made in (result, *reversed(inner)):
        graph.erase_node(made)
