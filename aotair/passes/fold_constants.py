"""What depends on constants alone leaves the graph, with its program: a checkpoint that comes later runs it again.

Constant folding that keeps the program. A value that a call needs becomes a constant of its own; views of it stay in
the graph, since they cost nothing. What would take much more memory than what it follows from stays as it is.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set

import torch
from torch.fx.node import Node

from ..graph.alias import root, written_roots
from ..graph.derived import Derivation, is_constant, mark_derived
from ..graph.fake import relay, tensors_of
from ..graph.operand import results_of
from .edits import Edits
from .merge_duplicates import is_pure

_GROWTH, _ALWAYS = 2, 1 << 20  # a value may take as many times the bytes of what it follows from, and these besides


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    if fold(module.graph, edits):
        relay(module.graph)


def _too_large(wanted: Sequence[Node]) -> dict[Node, str]:
    return {node: why for node in wanted if (why := why_large(node))}


def fold(
    graph: torch.fx.Graph,
    edits: Edits,
    begins: Callable[[Node], bool] = is_constant,
    kept: Collection[Node] = (),
    why_not: Callable[[Sequence[Node]], Mapping[Node, str]] = _too_large,
    together: bool = True,
) -> bool:
    """Let placeholders stand for what follows from those where it `begins`, and gives whether one lies otherwise than
    what it stands for did. Values of `kept` stay, and those for which there is a reason: by default, that they take too
    much. `together`: whether values that share something computed are made by one graph."""
    kept = set(kept)
    strided = {root(node) for node in graph.nodes if node.target is torch.ops.aten.as_strided.default}
    while True:
        inside = constant_nodes(graph, kept, begins)
        wanted = _wanted(inside)
        apart = {node: why for node in wanted if (why := _why_none(node, strided))}
        apart |= why_not([node for node in wanted if node not in apart])
        if not apart:
            break
        kept |= apart.keys()
        for node, why in apart.items():
            edits.declined(node, why)
    groups = _groups(wanted) if together else ([node] for node in wanted)
    made = [group for group in groups if all(edits.may(node, _said(node)) for node in group)]
    copies = [Derivation(_copied(graph, group)) for group in made]  # before a placeholder stands for any of them
    relaid = [_move(graph, group, derivation) for group, derivation in zip(made, copies)]
    for node in reversed(graph.nodes):
        if node in inside and node.op == "call_function" and not node.users:
            graph.erase_node(node)
    return any(relaid)


def _said(node: Node) -> str:
    return f"made of {_names(_sources(node))} before any call"


def _why_none(node: Node, strided: Set[Node]) -> str:
    """Why a value cannot lie in a placeholder of its own; empty where it can. `strided`: the roots of what is read by
    strides that the call names."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return "it has several results, some of which stay"
    if root(node) in strided and not value.is_contiguous():
        return "it is read by strides that are not those of a tensor of its own"
    return ""


def constant_nodes(
    graph: torch.fx.Graph,
    kept: Set[Node] = frozenset(),
    begins: Callable[[Node], bool] = is_constant,
    plain: Collection[Node] = (),
) -> set[Node]:
    """The placeholders where it `begins`, and the calls that depend on them alone, without those of `kept`. Calls of
    `plain` write over what they read, and count as if they did not."""
    written, found = written_roots(graph, plain), set[Node]()
    for node in graph.nodes:
        follows = begins(node) or (found.issuperset(node.all_input_nodes) and (node in plain or _folds(node)))
        if follows and node not in kept and root(node) not in written:
            found.add(node)
    return found


def _folds(node: Node) -> bool:
    """Whether the host computes a call, always the same result of the same arguments, whose sizes are numbers."""
    if node.op != "call_function" or not is_pure(node):
        return False
    if node.target is operator.getitem:
        return True
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    values = [value for _, value in tensors_of(node.meta.get("val"))]
    numbers = all(isinstance(n, int) for value in values for n in (*value.shape, *value.stride()))
    return op.namespace == "aten" and bool(values) and numbers


def _wanted(inside: set[Node]) -> list[Node]:
    """The values that calls outside need, in order, as far as anything is computed for them."""
    found: dict[Node, None] = {}
    for node in inside:
        if not inside.issuperset(node.users) and _computes(source := root(node)):
            found[source] = None
    order = {node: number for number, node in enumerate(next(iter(found)).graph.nodes)} if found else {}
    return sorted(found, key=order.__getitem__)


def _computes(node: Node) -> bool:
    """Whether a value takes more than being filled with numbers."""
    return node.op == "call_function" and bool(node.all_input_nodes)


def why_large(node: Node) -> str:
    """Why a value is no constant of its own; empty where it is."""
    takes, there = nbytes(node), sum(map(nbytes, _sources(node)))
    if takes <= _GROWTH * there + _ALWAYS:
        return ""
    return f"it would take {takes:,} bytes, and what it follows from takes {there:,}"


def nbytes(node: Node) -> int:
    """What a value takes."""
    value: torch.Tensor = node.meta["val"]
    return int(value.numel()) * value.element_size()


def _sources(node: Node) -> list[Node]:
    """The constants that a value follows from."""
    return [found for found in _before([node]) if found.op == "placeholder"]


def _before(nodes: Iterable[Node]) -> list[Node]:
    """These nodes and all that they depend on, in no order but always the same."""
    found: dict[Node, None] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = None
            waiting += node.all_input_nodes
    return list(found)


def _groups(wanted: Sequence[Node]) -> Iterator[list[Node]]:
    """The values, those together that share something computed."""
    groups: list[tuple[set[Node], list[Node]]] = []
    for node in wanted:
        mine, values = {found for found in _before([node]) if _computes(found)}, [node]
        for group in [group for group in groups if group[0] & mine]:
            groups.remove(group)
            mine, values = mine | group[0], group[1] + values
        groups.append((mine, values))
    return (values for _, values in groups)


def _move(graph: torch.fx.Graph, made: Sequence[Node], derivation: Derivation) -> bool:
    """Let placeholders stand for these values; gives whether one lies otherwise than its value did."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    relaid = False
    for number, (node, result) in enumerate(zip(made, results_of(derivation.graph), strict=True)):
        with graph.inserting_before(first):
            placeholder = graph.placeholder(f"derived_{node.name}")
        value = result.meta["val"]
        placeholder.meta["val"] = value.contiguous() if not value.is_contiguous() else value
        relaid |= not value.is_contiguous()
        mark_derived(placeholder, derivation, number)
        node.replace_all_uses_with(placeholder)
    return relaid


def _copied(graph: torch.fx.Graph, made: Sequence[Node]) -> torch.fx.Graph:
    """A graph of its own that makes these values."""
    copy, env, needed = torch.fx.Graph(), dict[Node, Node](), set(_before(made))
    for node in graph.nodes:
        if node in needed:
            env[node] = copy.node_copy(node, env.__getitem__)
    copy.output(tuple(env[node] for node in made))
    return copy


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(node.name for node in nodes) or "nothing"
