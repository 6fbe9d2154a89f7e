"""From a bucket's graph to intervals: which tensors need memory of the arena, how much, and from when to when."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx.node import Node

from aotair_runtime.format.schema import Space

from ..graph.fake import storage_of, tensors_of
from ..graph.operand import index_of, operand
from ..lower.select import Kernel
from .concurrency import prolonged
from .interval import Interval


@dataclass(frozen=True)
class Root:
    """A piece of memory: `index` counts buffers of the arena, or names a placeholder by its position."""

    space: Space
    index: int


@dataclass(frozen=True)
class Home:
    """Where a tensor lies: `offset` bytes into its root."""

    root: Root
    offset: int


@dataclass(frozen=True)
class Lifetimes:
    """`homes` by (node, output number); `launches` are the nodes that run, in order, node k at step k + 1. `copies`
    gives the interval of the copy of each user input, by the placeholder's position.

    Step 0 is the copying in of inputs, the step after the last launch is the handing out of results.
    """

    homes: Mapping[tuple[Node, int], Home]
    intervals: tuple[Interval, ...]
    launches: tuple[Node, ...]
    copies: Mapping[int, int]

    def home(self, node: Node, output: int = 0) -> Home | None:
        """The home of a tensor, or None for a result that nobody wants."""
        if node.target is operator.getitem:
            return self.home(operand(node), index_of(node))
        return self.homes.get((node, output))


def lifetimes(graph: torch.fx.Graph, spaces: Mapping[str, Space], kernels: Mapping[Node, Kernel]) -> Lifetimes:
    """`spaces` says where the memory of each placeholder is; what is not a view of another tensor gets a buffer.
    `kernels` are those of the nodes that run (`lower.select`).

    Memory is shared exactly where the fake tensors in `meta["val"]` share a storage.
    """
    analysis = _Analysis(kernels)
    for position, node in enumerate(n for n in graph.nodes if n.op == "placeholder"):
        analysis.placeholder(node, spaces[node.name], position)
    for node in graph.nodes:
        if "event" in node.meta:
            analysis.launches.append(node)
        elif node.op == "call_function" and node.target is not operator.getitem:
            analysis.call(node)
    analysis.outputs(graph.output_node())
    analysis.last = prolonged(analysis.launches, analysis.accesses, analysis.last)
    intervals = tuple(Interval(*values) for values in zip(analysis.sizes, analysis.first, analysis.last, strict=True))
    return Lifetimes(analysis.homes, intervals, tuple(analysis.launches), analysis.copies)


class _Analysis:
    def __init__(self, kernels: Mapping[Node, Kernel]):
        self._kernels = kernels
        self.homes: dict[tuple[Node, int], Home] = {}
        self.launches: list[Node] = []
        self.sizes: list[int] = []
        self.first: list[int] = []
        self.last: list[int] = []
        self.accesses: list[list[int]] = []  # by buffer: the steps that use it
        self.copies: dict[int, int] = {}
        self._roots: dict[int, Root] = {}  # by storage

    def placeholder(self, node: Node, space: Space, position: int) -> None:
        value = node.meta["val"]
        root = Root(space, position)
        if space == Space.INPUT:
            self.copies[position] = self._new_buffer(value, 0).index
        self._roots[storage_of(value)] = root
        self.homes[node, 0] = Home(root, 0)

    def call(self, node: Node) -> None:
        results = list(tensors_of(node.meta["val"]))
        step = len(self.launches) + 1
        if node in self._kernels:
            self.launches.append(node)
            self._use(node.all_input_nodes, step)
        wanted = self._wanted(node, len(results))
        for position, value in results:
            if position not in wanted:
                continue
            root = self._roots.get(storage_of(value))
            if root is None:
                root = self._roots[storage_of(value)] = self._new_buffer(value, step)
            self.homes[node, position] = Home(root, int(value.storage_offset()) * value.element_size())

    def outputs(self, node: Node) -> None:
        self._use(node.all_input_nodes, len(self.launches) + 1)

    def _use(self, nodes: list[Node], step: int) -> None:
        for node in nodes:
            for _, value in tensors_of(node.meta["val"]):
                root = self._roots.get(storage_of(value))
                if root is not None and root.space in (Space.ARENA, Space.INPUT):
                    buffer = root.index if root.space == Space.ARENA else self.copies[root.index]
                    self.last[buffer] = step
                    self.accesses[buffer].append(step)

    def _new_buffer(self, value: torch.Tensor, step: int) -> Root:
        self.sizes.append(value.untyped_storage().nbytes())
        self.first.append(step)
        self.last.append(step)
        self.accesses.append([step])
        return Root(Space.ARENA, len(self.sizes) - 1)

    def _wanted(self, node: Node, count: int) -> set[int]:
        """The results that need memory: all where the op writes into given tensors, else those that are used."""
        single = count < 2 or not isinstance(node.meta["val"], (tuple, list))
        if single or (node in self._kernels and self._kernels[node].writes_all):
            return set(range(count))
        return {index_of(user) for user in node.users if user.target is operator.getitem}
