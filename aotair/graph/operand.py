"""Which op does a node call, and which nodes are its arguments, where the op demands tensors?"""

from collections.abc import Sequence

from torch._ops import OpOverload
from torch.fx import Graph, Node


def op_of(node: Node) -> OpOverload:
    """The overload that a node calls.

    Raises:
        TypeError: It calls none.
    """
    if not isinstance(node.target, OpOverload):
        raise TypeError(f"{node.format_node()} calls no overload of an op")
    return node.target


def operand(node: Node, place: int = 0) -> Node:
    """The tensor at a place among a node's positional arguments.

    Raises:
        TypeError: No tensor is there: the op was mistaken for another.
    """
    return _as_node(node, node.args[place])


def operands(node: Node, place: int = 0) -> list[Node]:
    """The tensors of the list at a place among a node's positional arguments, as `aten.cat` and `aten.stack` take them.

    Raises:
        TypeError: No list of tensors is there: the op was mistaken for another.
    """
    given = node.args[place]
    if not isinstance(given, Sequence):
        raise TypeError(f"argument {place} of {node.format_node()} is no list of tensors")
    return [_as_node(node, item) for item in given]


def index_of(getitem: Node) -> int:
    """Which result of its call an `operator.getitem` takes.

    Raises:
        TypeError: Its index is no number.
    """
    index = getitem.args[1]
    if not isinstance(index, int):
        raise TypeError(f"{getitem.format_node()} takes no result by its number")
    return index


def results_of(graph: Graph) -> list[Node]:
    """The tensors that a graph returns, in order."""
    return operands(graph.output_node())


def _as_node(node: Node, given: object) -> Node:
    if not isinstance(given, Node):
        raise TypeError(f"a tensor was expected among the arguments of {node.format_node()}, and {given!r} is there")
    return given
