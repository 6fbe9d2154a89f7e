"""One graph for all ranks, of those that each of them has: where theirs differ in a number, that becomes data."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import Argument, Node, map_arg

from aotair_runtime.artifact.checkpoint import same_bytes
from aotair_runtime.format.mesh import coordinates
from aotair_runtime.format.schema import Axis, Shard

from ..errors import UnsupportedError
from .placements import one_after_the_other

_aten = torch.ops.aten
Number = int | float


def agreed(graphs: Sequence[torch.fx.GraphModule], where: str) -> dict[str, tuple[Number, ...]]:
    """Make the first rank's graph good for all: where others have another number, that becomes a buffer; gives by their
    names one number for each rank. Raises UnsupportedError where they differ otherwise."""
    nodes = [list(one.graph.nodes) for one in graphs]
    agreeing = _Agreeing(graphs, where)
    if any(len(own) != len(nodes[0]) for own in nodes):
        raise agreeing.refusal("their numbers of operations", [len(own) for own in nodes])
    for alike in zip(*nodes, strict=True):
        agreeing.agree_on(alike)
    graphs[0].recompile()
    return agreeing.numbers


class _Agreeing:
    def __init__(self, graphs: Sequence[torch.fx.GraphModule], where: str):
        self._graphs, self._where = graphs, where
        self._places = [{node: number for number, node in enumerate(one.graph.nodes)} for one in graphs]
        self.numbers: dict[str, tuple[Number, ...]] = {}

    def agree_on(self, alike: Sequence[Node]) -> None:
        """Compare one operation of the ranks."""
        first = alike[0]
        kinds = {(node.op, "" if node.op in ("get_attr", "placeholder") else str(node.target)) for node in alike}
        if len(kinds) > 1:
            raise self.refusal("an operation", [node.target for node in alike])
        if first.op == "get_attr":
            values = [getattr(graph, str(node.target)) for graph, node in zip(self._graphs, alike, strict=True)]
            if not all(same_bytes((values[0], value)) for value in values):
                raise self.refusal("a tensor of the code", [value.flatten()[:4].tolist() for value in values])
            return
        said = [_said(node, known) for node, known in zip(alike, self._places, strict=True)]
        for place, arguments in enumerate(zip(*(args for args, _ in said), strict=True)):
            if any(one != arguments[0] for one in arguments):
                self._make_data(first, place, arguments)
        if any(words != said[0][1] for _, words in said):
            raise self.refusal(f"how {first.target} is called", [words for _, words in said])

    def _make_data(self, node: Node, place: int, values: Sequence[object]) -> None:
        """Let a call take a number that is this rank's own."""
        op: Any = node.target
        numbers: Any = tuple(value for value in values if type(value) in (int, float))
        plain = place == 1 and len(numbers) == len(values)
        if plain and op is operator.getitem:
            self._take_own_piece(node, self._own_number(node, numbers))
        elif plain and getattr(op, "_overloadname", "") in ("Scalar", "Tensor"):
            # A tensor without dimensions leaves the result's dtype as a number of Python does.
            own = self._own_number(node, numbers)
            node.target = op.overloadpacket.Tensor
            node.update_arg(place, self._call(node, _aten.select.int, own, 0, 0))
        else:
            raise self.refusal(f"how {op} is called", values)

    def _own_number(self, before: Node, numbers: tuple[Number, ...]) -> Node:
        """A tensor with this rank's number alone."""
        name = f"number_of_rank_{len(self.numbers)}"
        self.numbers[name] = numbers
        self._graphs[0].register_buffer(name, torch.tensor(numbers[:1]), persistent=False)
        with self._graphs[0].graph.inserting_before(before):
            return self._graphs[0].graph.get_attr(name)

    def _take_own_piece(self, node: Node, number: Node) -> None:
        """The piece of that number, of several equal ones."""
        pieces = self._call(node, _aten.stack.default, node.args[0])
        piece = self._call(node, _aten.index_select.default, pieces, 0, number)
        node.target, node.args = _aten.select.int, (piece, 0, 0)

    def _call(self, before: Node, op: torch._ops.OpOverload, *args: Argument) -> Node:
        with self._graphs[0].graph.inserting_before(before):
            return self._graphs[0].graph.call_function(op, args)

    def refusal(self, what: str, values: Sequence[object]) -> UnsupportedError:
        shown = "; ".join(f"rank {rank}: {str(value)[:120]}" for rank, value in enumerate(values[:4]))
        return UnsupportedError(
            f"mesh: the ranks' programs differ in {what}, and they have to be one",
            where=self._where,
            expected="the same operations on every rank, over other parts and other numbers",
            got=shown,
            fix="choose placements that cut evenly, and let no rank do what others do not",
        )


def _said(node: Node, places: Mapping[Node, int]) -> tuple[tuple[Argument, ...], object]:
    """The arguments of a call, by position and by name, with places in the graph for nodes."""
    said: tuple[tuple[Argument, ...], object] = map_arg((node.args, node.kwargs), lambda one: f"node {places[one]}")
    return said


def cut_of(numbers: Sequence[Number], mesh: Sequence[Axis], where: str) -> tuple[Tensor, Shard]:
    """Numbers of ranks as a tensor, and how that is cut so that each has its own. Raises UnsupportedError where they
    vary along more than two axes."""
    places = [coordinates(mesh, rank) for rank in range(len(numbers))]
    found = dict(zip(places, numbers, strict=True))
    axes = [number for number in range(len(mesh)) if _varies(found, number)]
    if len(axes) > 2:
        raise UnsupportedError("mesh: a number of the program differs along more than two axes", where=where)
    kept = sorted({tuple(place[axis] for axis in axes): value for place, value in found.items()}.items())
    cuts = [Shard(axis, 0, mesh[axis].size) for axis in axes]
    return torch.tensor([value for _, value in kept]), one_after_the_other(cuts)


def _varies(found: Mapping[tuple[int, ...], Number], axis: int) -> bool:
    return any(value != found[place[:axis] + (0,) + place[axis + 1 :]] for place, value in found.items())
