"""Which argument of a call is a weight that nodes are to pack? A mark that a pass sets and that emission reads."""

from torch.fx.node import Node

_PACKED = "packed"


def mark_packed(node: Node, place: int) -> None:
    """The node's argument number `place`, or the only one of a list there, is a constant that is read packed."""
    node.meta[_PACKED] = place


def packed_place(node: Node) -> int | None:
    """The argument that is read packed, by its number."""
    place: int | None = node.meta.get(_PACKED)
    return place
