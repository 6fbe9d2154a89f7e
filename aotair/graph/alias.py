"""Which nodes look at the same memory, who writes it, and who uses it last."""

import operator
from collections.abc import Container, Iterator

import torch
from torch.fx.node import Node, map_arg

# Views whose schema does not say so: eager PyTorch makes them of what nobody else holds, passes may change that.
_UNSAID = frozenset({torch.ops.aten._unsafe_view.default})


def base(node: Node) -> Node | None:
    """The node whose memory this one looks at or writes in place; None where its result is memory of its own."""
    source = node.args[0] if node.op == "call_function" and node.args else None
    if not isinstance(source, Node):
        return None
    if node.target is operator.getitem:
        return source if base(source) is not None else None  # a part of a list of views; else one of several results
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    if node.target in _UNSAID:
        return source
    schema = node.target._schema
    if not schema.arguments or schema.arguments[0].alias_info is None:
        return None
    # An op may write into its first argument and return something else.
    return source if schema.returns and schema.returns[0].alias_info is not None else None


def root(node: Node) -> Node:
    """The node that brought the memory `node` looks at, through views and in-place ops."""
    while (source := base(node)) is not None:
        node = source
    return node


def times_given(node: Node, argument: Node) -> int:
    """How often `argument` is given to `node`."""
    given: list[Node] = []
    map_arg((node.args, node.kwargs), given.append)
    return given.count(argument)


def written_by(node: Node) -> Iterator[Node]:
    """The arguments that a node writes into."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, Node):
                yield item


def written_roots(graph: torch.fx.Graph, but: Container[Node] = ()) -> set[Node]:
    """The roots of all tensors that some node of the graph writes into, `but` those that these write into."""
    return {root(item) for node in graph.nodes if node not in but for item in written_by(node)}


def why_written(node: Node, written: Container[Node]) -> str:
    """Which of a call's result and arguments is written over, so that it may be another later; empty where none is.
    `written`: roots."""
    found = next((one for one in (node, *node.all_input_nodes) if root(one) in written), None)
    return "" if found is None else f"{found.name} is written over"


class Uses:
    """By root: the position of the last node that uses its memory. Follows rewrites through `merge`.

    Positions are those of the nodes when this was made.
    """

    def __init__(self, graph: torch.fx.Graph):
        self.position = {node: number for number, node in enumerate(graph.nodes)}
        self._root: dict[Node, Node] = {}
        self._last: dict[Node, int] = {}
        for node, number in self.position.items():
            source = base(node)
            self._root[node] = self._root[source] if source is not None else node
            for argument in node.all_input_nodes:
                self._last[self._root[argument]] = number

    def root(self, node: Node) -> Node:
        """The node that brought the memory, as the rewrites so far have it."""
        found = self._root[node]
        while found is not self._root[found]:
            found = self._root[found]
        while self._root[node] is not found:  # shorten the way for the next who asks
            self._root[node], node = found, self._root[node]
        return found

    def last(self, node: Node) -> int:
        """Where the memory of `node` is used for the last time."""
        return self._last.get(self.root(node), -1)

    def merge(self, result: Node, source: Node) -> None:
        """From now on `result` is the memory of `source`."""
        mine, theirs = self.root(result), self.root(source)
        if mine is not theirs:
            self._root[mine] = theirs
            self._last[theirs] = max(self._last.get(theirs, -1), self._last.get(mine, -1))
