"""What a graph's constants follow from: placeholders that stand for constants, and those whose values a graph makes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx.node import Node

_CONSTANT, _DERIVED, _FIXED = "constant", "derived", "fixed"


@dataclass(frozen=True)
class Derivation:
    """A graph over constants: its placeholders have the names of those that it reads, and it returns what it makes."""

    graph: torch.fx.Graph


def mark_constant(placeholder: Node) -> None:
    """From now on the placeholder stands for a tensor that no call brings and nothing writes into."""
    placeholder.meta[_CONSTANT] = True


def is_constant(node: Node) -> bool:
    """Whether a node is a placeholder that stands for a constant, derived ones included."""
    return node.op == "placeholder" and bool(node.meta.get(_CONSTANT))


def mark_fixed(placeholder: Node) -> None:
    """The constant is a tensor of the model that no checkpoint has, and no state."""
    mark_constant(placeholder)
    placeholder.meta[_FIXED] = True


def is_fixed(node: Node) -> bool:
    """Whether a node is a placeholder that stands for such a constant."""
    return is_constant(node) and bool(node.meta.get(_FIXED))


def mark_derived(placeholder: Node, derivation: Derivation, result: int) -> None:
    """The placeholder stands for the result of that number."""
    mark_constant(placeholder)
    placeholder.meta[_DERIVED] = (derivation, result)


def derivations(graph: torch.fx.Graph) -> Iterator[tuple[Node, Derivation, int]]:
    """The placeholders whose values are made of other constants, each with what makes it and as which result."""
    for node in graph.find_nodes(op="placeholder"):
        if _DERIVED in node.meta:
            yield (node, *node.meta[_DERIVED])
