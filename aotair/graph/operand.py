"""Which nodes are the arguments of a node, where its op demands tensors?"""

from collections.abc import Sequence

from torch.fx import Node


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


def _as_node(node: Node, given: object) -> Node:
    if not isinstance(given, Node):
        raise TypeError(f"a tensor was expected among the arguments of {node.format_node()}, and {given!r} is there")
    return given
