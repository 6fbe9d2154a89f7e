"""Ops that a user's own check keeps as they are: aotair's own rules do not join them."""

from collections import Counter
from collections.abc import Iterable

from torch.fx.node import Node

from .misses import LIGHT

_KEPT = "kept_apart"  # in a node's meta: the matches that a user's extra_check declined, each "rule at first output"


def keep(rule: str, outputs: Iterable[Node], nodes: Iterable[Node]) -> None:
    """The extra_check of the rule `rule` says no to a match of these nodes."""
    match = f"{rule} at {min(node.name for node in outputs)}"
    for node in _computing(nodes):
        found = node.meta.get(_KEPT, ())
        node.meta[_KEPT] = found if match in found else (*found, match)


def kept_as(whole: Node, parts: Iterable[Node]) -> None:
    """What was said of the parts is said of the op that stands for them now."""
    found = tuple(dict.fromkeys(match for part in parts for match in part.meta.get(_KEPT, ())))
    if found:
        whole.meta[_KEPT] = found


def kept_by(nodes: Iterable[Node]) -> str | None:
    """The user's rule whose check keeps what a match of these nodes would fuse, or nothing.

    It does where the match holds two ops or more of what was declined, or nothing but such ops. A match that shares one
    op among several with it makes something else.
    """
    computing = _computing(nodes)
    shared = Counter(match for node in computing for match in node.meta.get(_KEPT, ()))
    held = (match for match, count in shared.items() if count > 1 or count == len(computing))
    return next((match.rpartition(" at ")[0] for match in held), None)


def _computing(nodes: Iterable[Node]) -> list[Node]:
    """Those that compute something; all, where none does."""
    called = [node for node in nodes if node.op == "call_function"]
    return [node for node in called if node.target not in LIGHT] or called
