"""Dotted names of arguments and of what lies within them, and the plain values that constants may be."""

from collections.abc import Sequence
from typing import TypeAlias

Branch: TypeAlias = "dict[str, Branch]"
PLAIN = (bool, int, float, str, type(None))


def tree_of(names: Sequence[str]) -> Branch:
    """The steps of dotted names as nested dicts: `{"batch": {"ids": {}, "mask": {}}}`."""
    tree: Branch = {}
    for name in names:
        branch = tree
        for step in name.split("."):
            branch = branch.setdefault(step, {})
    return tree
