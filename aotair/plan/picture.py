"""A bucket's plan as a picture shows it: what lies where in the arena, from step to step, under which name."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch.fx.node import Node

from aotair_runtime.format.schema import Space

from ..graph.operand import results_of
from ..graph.user_line import source
from .lifetimes import Home, Lifetimes
from .search.arena import Plan

Kind = Literal["input", "output", "inner"]


@dataclass(frozen=True)
class Strip:
    """`size` bytes at `offset`, needed from step `first` to step `last`, both included.

    `name`, `dtype` and `shape` are those of the first tensor that lies there; `others` share its memory: views, and
    what is written over it. `source` is the line of the user's model that asked for it, or nothing.
    """

    offset: int
    size: int
    first: int
    last: int
    kind: Kind
    name: str
    dtype: str
    shape: tuple[int, ...]
    others: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Picture:
    """`steps` names what is done at each step: first the copying in of inputs, at last the handing out of results.
    Offsets and the room that a strip takes are multiples of `alignment`. Strips come as the steps make them."""

    steps: tuple[str, ...]
    height: int
    alignment: int
    strips: tuple[Strip, ...]


@dataclass(frozen=True)
class DrawnPeak:
    """The first step at which most is alive: how many bytes, in strips with their room rounded up, and which strips,
    the largest first."""

    step: int
    nbytes: int
    strips: tuple[Strip, ...]


def picture(graph: torch.fx.Graph, lives: Lifetimes, plan: Plan, alignment: int) -> Picture:
    """What `plan` makes of a bucket's graph. Intervals of no bytes are not in it."""
    residents: dict[int, list[tuple[Node, int]]] = {}
    for tensor, own in lives.homes.items():
        if (interval := _interval(own, lives.copies)) is not None:
            residents.setdefault(interval, []).append(tensor)
    kinds: dict[int, Kind] = {}
    for node in results_of(graph):
        home = lives.home(node)
        if home is not None and (interval := _interval(home, lives.copies)) is not None:
            kinds[interval] = "output"
    kinds |= dict.fromkeys(lives.copies.values(), "input")
    strips = [
        _strip(item.size, item.first, item.last, offset, kinds.get(number, "inner"), residents[number])
        for number, (item, offset) in enumerate(zip(lives.intervals, plan.offsets, strict=True))
        if item.size
    ]
    steps = ("inputs are copied in", *(node.name for node in lives.launches), "results are handed out")
    return Picture(steps, plan.height, alignment, tuple(strips))


def drawn_peak(shown: Picture) -> DrawnPeak:
    """Where most is alive."""
    changes = [0] * (len(shown.steps) + 1)
    for strip in shown.strips:
        changes[strip.first] += _room(strip, shown.alignment)
        changes[strip.last + 1] -= _room(strip, shown.alignment)
    alive = list(itertools.accumulate(changes))
    step = alive.index(max(alive))
    living = [strip for strip in shown.strips if strip.first <= step <= strip.last]
    return DrawnPeak(step, alive[step], tuple(sorted(living, key=lambda strip: (-strip.size, strip.offset))))


def _interval(home: Home, copies: Mapping[int, int]) -> int | None:
    """The interval that a tensor lies in; what is not in the arena has none."""
    if home.root.space == Space.ARENA:
        return home.root.index
    return copies.get(home.root.index) if home.root.space == Space.INPUT else None


def _strip(size: int, first: int, last: int, offset: int, kind: Kind, tensors: list[tuple[Node, int]]) -> Strip:
    node, position = tensors[0]
    value = node.meta["val"]
    value = value[position] if isinstance(value, (tuple, list)) else value
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(map(int, value.shape))
    name, *others = (_name(*tensor) for tensor in tensors)
    # What a pass has made may come from no line: then who else lies there says more.
    line = next(filter(None, (source(user) for user, _ in tensors)), "").removeprefix(" (").removesuffix(")")
    return Strip(offset, size, first, last, kind, name, dtype, shape, tuple(others), line)


def _name(node: Node, position: int) -> str:
    return f"{node.name}[{position}]" if isinstance(node.meta["val"], (tuple, list)) else node.name


def _room(strip: Strip, alignment: int) -> int:
    return -(-strip.size // alignment) * alignment
