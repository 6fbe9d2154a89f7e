"""Which places did the passes over a graph change, each kind once? What repeats from layer to layer is told once."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..passes.changes import Change
from ..passes.observer import PassRecord

_NUMBER = re.compile(r"\b((?:u?int|b?float|complex)\d+)|_?\d+")  # dtypes keep theirs


@dataclass(frozen=True)
class Alike:
    """Places that a pass changed in the same way, but for numbers: the first, and the modules of all in order."""

    first: Change
    modules: tuple[str, ...]


def alike(changes: Sequence[Change]) -> list[Alike]:
    """The places, each kind once, in the order of their first ones."""
    found: dict[object, list[Change]] = {}
    for change in changes:
        found.setdefault(_kind(change), []).append(change)
    return [Alike(same[0], tuple(change.module for change in same)) for same in found.values()]


def same_as_before(records: Sequence[PassRecord]) -> dict[int, str]:
    """By the number of a record, the first graph in which the same pass changed and left alone the same, but for
    numbers."""
    seen: dict[object, str] = {}
    found = {}
    for number, record in enumerate(records):
        changed = {_kind(change) for change in record.changes}
        left = {(one.op, _plain(one.text), one.source) for one in record.accounts if not one.rewritten}
        first = seen.setdefault((record.name, frozenset(changed), frozenset(left)), record.graph)
        if first != record.graph:
            found[number] = first
    return found


def _kind(change: Change) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """A place without the numbers that tell one layer, or one bucket, from another."""
    return _plain(change.module), tuple(map(_plain, change.before)), tuple(map(_plain, change.after))


def _plain(text: str) -> str:
    return _NUMBER.sub(lambda found: found[1] or "", text)
