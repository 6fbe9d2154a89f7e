"""A sum over ranks of which each reads its own rows alone is scattered: `reduce_scatter` in the place of `all_reduce`.

A module of the style `sequence` makes some rows on each rank, and all ranks' are put together behind it. What stands
before it, sums over the ranks and what is added to them row by row, is then needed in part alone: between two blocks of
a language model a rank keeps its rows of the residual (Korthikanti et al. 2022, section 4.2.2). An `all_reduce` is as
long as a `reduce_scatter` and an `all_gather`; saved is what other ranks compute.
"""

from collections.abc import Container

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.fx.node import Node, map_arg

from ..graph.alias import why_written, written_roots
from ..graph.layers import Writer
from ..graph.operand import op_of, operand
from ..ops import rows
from .edits import Edits

_aten, _air = torch.ops.aten, torch.ops.air
_VIEWS = frozenset({_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default})
_COPIES = frozenset({_aten._to_copy.default, _aten.clone.default})
_PLAIN = (None, torch.contiguous_format, torch.preserve_format)


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    graph = module.graph
    axes = dict.fromkeys(reader.args[2:] for reader in graph.find_nodes(op="call_function", target=rows.OWN))
    for ranks, axis in axes:
        assert isinstance(ranks, int) and isinstance(axis, str)
        _Axis(graph, ranks, axis, edits).scatter()


class _Axis:
    """What of a graph is read by rows along one axis of the mesh."""

    def __init__(self, graph: torch.fx.Graph, ranks: int, axis: str, edits: Edits):
        self._graph, self._ranks, self._axis, self._edits = graph, ranks, axis, edits
        found = graph.find_nodes(op="call_function", target=rows.OWN)
        self._readers = [reader for reader in found if reader.args[2:] == (ranks, axis)]
        self._number = operand(self._readers[0], 1)
        self._own: dict[Node, Node] = {}

    def scatter(self) -> None:
        """Compute the rank's own rows alone of all that leads from sums to what reads these."""
        if self._number.op != "placeholder":  # which is there before all that is to be written
            return
        inside = self._read_in_part()
        if not any(self._is_sum(node) for node in inside):
            return
        in_order = [node for node in self._graph.nodes if node in inside]
        for node in in_order:
            self._own[node] = self._part_of(node, Writer(node, node, set()))
        for reader in [one for one in self._readers if operand(one) in inside]:
            reader.replace_all_uses_with(self._own[operand(reader)])
            self._graph.erase_node(reader)
        for node in reversed(in_order):
            if not node.users:  # their arguments would count them as readers
                self._graph.erase_node(node)

    def _read_in_part(self) -> set[Node]:
        """The nodes that nothing but readers reads, directly or through each other, and of which rows can be made."""
        inside, by_rows, written = set[Node](), set(self._readers), written_roots(self._graph)
        for node in reversed(self._graph.nodes):
            if self._is_sum(node):
                if self._may(node, self._why_whole(node, by_rows, written)):
                    inside.add(node)  # and is no reader by rows: of what it sums it needs all
            elif _is_by_rows(node) and not self._why_whole(node, by_rows, written):
                inside.add(node)
                by_rows.add(node)
        return inside

    def _may(self, node: Node, why: str) -> bool:
        if why:
            self._edits.declined(node, why)
            return False
        return self._edits.may(node, "scattered: each rank reads its rows")

    def _why_whole(self, node: Node, by_rows: Container[Node], written: Container[Node]) -> str:
        whole = _reader_but(node, by_rows)
        if whole is not None:
            return f"{_last_of(whole, by_rows).name} reads all of its rows"
        return why_written(node, written) if node.users else "nothing reads it"

    def _is_sum(self, node: Node) -> bool:
        return (
            node.op == "call_function"
            and node.target is _air.all_reduce.default
            and node.args[1:] == ("sum", self._axis)
            and node.meta["val"].dim() > 1
        )

    def _part_of(self, node: Node, write: Writer) -> Node:
        """The rank's rows of a node, as two dimensions."""
        if self._is_sum(node):
            return write.call(rows.SUM, operand(node), self._ranks, self._axis)
        if node.target in _VIEWS:
            return self._rows_of(operand(node), write)

        def part(one: Node) -> Node:
            return self._rows_of(one, write) if _has_rows(one) else one

        args, kwargs = map_arg((node.args, node.kwargs), part)
        return write.call(op_of(node), *args, **kwargs)

    def _rows_of(self, node: Node, write: Writer) -> Node:
        if node not in self._own:
            self._own[node] = write.call(rows.OWN, node, self._number, self._ranks, self._axis)
        return self._own[node]


def _is_by_rows(node: Node) -> bool:
    """Whether each row of a node's result is made of the same row of each operand that has rows."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() < 2:
        return False
    given = [one for one in node.all_input_nodes if _has_rows(one)]
    if node.target in _VIEWS:
        return len(given) == 1 and _have_one_width(given[0].meta["val"], value)
    if not (_is_plain_copy(node) if node.target in _COPIES else _is_pointwise(node.target)):
        return False
    alike = all(statically_known_true(sym_eq(one.meta["val"].shape, value.shape)) for one in given)
    return bool(given) and alike and not node.target._schema.is_mutable


def _reader_but(node: Node, by_rows: Container[Node]) -> Node | None:
    """A node that reads more of `node` than its sizes, and is none of these."""
    return next((user for user in node.users if user not in by_rows and user.target is not _aten.sym_size.int), None)


def _last_of(reader: Node, by_rows: Container[Node]) -> Node:
    """What reads all rows in the end, where a reader would have done with some."""
    while _is_by_rows(reader) and (following := _reader_but(reader, by_rows)) is not None:
        reader = following
    return reader


def _is_pointwise(op: torch._ops.OpOverload) -> bool:
    return torch.Tag.pointwise in op.tags and torch.Tag.nondeterministic_seeded not in op.tags


def _is_plain_copy(copy: Node) -> bool:
    """Of the values, and not of the order in which they lie: rows have no channels."""
    return copy.kwargs.get("memory_format") in _PLAIN


def _has_rows(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() > 1


def _have_one_width(x: torch.Tensor, y: torch.Tensor) -> bool:
    """The last sizes are the same number: rows that lie behind each other stay what they are."""
    return isinstance(x.shape[-1], int) and x.shape[-1] == y.shape[-1]
