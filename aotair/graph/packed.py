"""Which arguments of a call are weights that nodes are to pack? A mark that a pass sets and that emission reads."""

from torch.fx.node import Node

_PACKED = "packed"


def mark_packed(node: Node, places: tuple[int, ...]) -> None:
    """The node's arguments number `places`, or the only one of a list there, are constants that are read packed."""
    node.meta[_PACKED] = places


def packed_places(node: Node) -> tuple[int, ...]:
    """The arguments that are read packed, by their numbers."""
    places: tuple[int, ...] = node.meta.get(_PACKED, ())
    return places
