"""Dotted names of arguments and of what lies within them, and the plain values that constants may be."""

from collections.abc import Sequence

PLAIN = (bool, int, float, str, type(None))


def tree_of(names: Sequence[str]) -> dict[str, dict]:
    """The steps of dotted names as nested dicts: `{"batch": {"ids": {}, "mask": {}}}`."""
    tree: dict[str, dict] = {}
    for name in names:
        branch = tree
        for step in name.split("."):
            branch = branch.setdefault(step, {})
    return tree
