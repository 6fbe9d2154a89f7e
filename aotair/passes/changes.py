"""What did a pass change in a graph? Each place before and after, with the module of the model that it belongs to."""

import difflib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ..graph.origin import module_of
from ..graph.show import shown_lines

_AROUND = 2  # lines that stay as they are, shown before and after a place

Lines: TypeAlias = tuple[tuple[str, str], ...]  # of a graph: each with the module that it belongs to, or ""


@dataclass(frozen=True)
class Change:
    """One place: the lines that were there and those that are there now, between lines that stayed; and the module of
    the model, empty where none is known."""

    module: str
    above: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    below: tuple[str, ...]


def lines_of(module: torch.fx.GraphModule) -> Lines:
    """The graph as a dump has it, to be compared with later."""
    return tuple(zip(shown_lines(module), map(module_of, module.graph.nodes), strict=True))


def changes(before: Lines, after: Lines) -> tuple[Change, ...]:
    """The places in which the second graph differs from the first, in order."""
    return tuple(_changes(before, after)) if before != after else ()


def _changes(before: Lines, after: Lines) -> Iterator[Change]:
    old, new = _texts(before), _texts(after)
    for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        below = new[m : m + _AROUND]
        above = new[max(0, k - _AROUND) : k]
        for mine, theirs in _by_module(before[i:j], after[k:m]):
            yield Change(_module([*theirs, *mine]), above, _texts(mine), _texts(theirs), below)


def _by_module(before: Lines, after: Lines) -> list[tuple[Lines, Lines]]:
    """A place that goes through several modules, module by module, where both sides go through the same ones."""
    mine, theirs = _runs(before), _runs(after)
    if [name for name, _ in mine] != [name for name, _ in theirs]:
        return [(before, after)]
    return [(one, other) for (_, one), (_, other) in zip(mine, theirs)]


def _runs(lines: Lines) -> list[tuple[str, Lines]]:
    return [(name, tuple(run)) for name, run in itertools.groupby(lines, key=lambda line: line[1])]


def _texts(lines: Lines) -> tuple[str, ...]:
    return tuple(text for text, _ in lines)


def _module(lines: Sequence[tuple[str, str]]) -> str:
    return next((module for _, module in lines if module), "")
