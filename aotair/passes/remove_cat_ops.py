"""Producers write straight into the slices of the tensor that `cat` would copy them into.

Works on the graph of one bucket, where sizes are numbers: `cat([a, b])` becomes memory for the whole, slices of it, and
the ops of a and b with these slices as their out arguments. What cannot write there is copied, as `cat` does.
"""

import math

import torch
from torch.fx.node import Argument, Node

from aotair_runtime.format.written import written_names

from ..graph.alias import Uses, base
from ..graph.fake import fake_result, recompute
from ..graph.inplace import same_layout
from ..graph.operand import operands
from ..graph.origin import copied
from ..graph.streams import several_streams
from ..target.out_variants import out_variant
from .edits import Edits

_aten = torch.ops.aten


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    if several_streams(module.graph.nodes):
        edits.skipped("the graph has several streams")
        return
    uses = None
    for node in [n for n in module.graph.nodes if n.target is _aten.cat.default]:
        why = _why_not(node)
        if not why and uses is None:
            uses = Uses(module.graph)
        placed = {} if why or uses is None else _placeable(node, uses, edits)
        if why or not placed:
            edits.declined(node, why or "none of its parts can be written where it belongs")
        elif edits.may(node, f"{len(placed)} of {len(operands(node))} parts are written where they belong"):
            _Rewrite(module.graph, node, edits).run(placed)
            uses = None  # anew: each rewrite moves what lies where
    if edits.count:
        recompute(module.graph)  # views of the parts now look into the whole


def _dim(node: Node) -> int:
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    rank: int = node.meta["val"].dim()
    assert isinstance(dim, int)  # so the op's schema has it
    return dim % max(1, rank)


def _why_not(node: Node) -> str:
    value, parts = node.meta["val"], operands(node)
    if len(parts) < 2:
        return "it has one part"
    if not value.is_contiguous():
        return "its result is not contiguous"
    if math.prod(value.shape[: _dim(node)]) != 1:
        return "its parts do not lie in one piece each"
    if any(part.meta["val"].dtype != value.dtype or part.meta["val"].dim() != value.dim() for part in parts):
        return "its parts have other dtypes or ranks than the result"
    return ""


def _placeable(node: Node, uses: Uses, edits: Edits) -> dict[int, Node]:
    """By the position among the parts: the op that can write its result into that part of the whole."""
    found: dict[int, Node] = {}
    for position, part in enumerate(operands(node)):
        owner = uses.root(part)
        why = _why_not_part(part, owner, node, uses, edits)
        if not why and owner in found.values():
            why = "it is another part too"
        if why:
            edits.declined(part, why)
        else:
            found[position] = owner
    return found


def _why_not_part(part: Node, owner: Node, node: Node, uses: Uses, edits: Edits) -> str:
    if owner.op != "call_function" or not isinstance(owner.target, torch._ops.OpOverload):
        return "it is an input, or one of several results"
    if not _same_tensor(part, owner):
        return "it is a view of another tensor"
    if owner.target._schema.is_mutable or out_variant(owner.target, edits.target) is None:
        return f"{owner.target} cannot write into a given tensor"
    if not part.meta["val"].is_contiguous() or not owner.meta["val"].is_contiguous():
        return "it is not contiguous"
    if uses.last(part) > uses.position[node]:
        return "it is used after the cat too"
    return ""


def _same_tensor(part: Node, owner: Node) -> bool:
    """Whether `part` is what `owner` made, perhaps after ops that wrote into it."""
    while part is not owner:
        if not isinstance(part.target, torch._ops.OpOverload) or not part.target._schema.is_mutable:
            return False
        above = base(part)
        assert above is not None  # it would be the owner
        part = above
    return True


class _Rewrite:
    def __init__(self, graph: torch.fx.Graph, node: Node, edits: Edits):
        self._graph, self._node, self._edits = graph, node, edits
        self._mode = node.meta["val"].fake_mode

    def run(self, placed: dict[int, Node]) -> None:
        node, value, dim = self._node, self._node.meta["val"], _dim(self._node)
        order = {n: number for number, n in enumerate(self._graph.nodes)}
        first = min(placed.values(), key=order.__getitem__)
        with self._graph.inserting_before(first):
            whole = self._call(_aten.empty.memory_format, list(value.shape), dtype=value.dtype, device=value.device)
            assert same_layout(whole.meta["val"], value)
            slices, start = [], 0
            for part in operands(node):
                size = part.meta["val"].shape[dim]
                slices.append(self._call(_aten.slice.Tensor, whole, dim, start, start + size))
                start += size
        for position, part in enumerate(operands(node)):
            if position not in placed:
                with self._graph.inserting_before(node):
                    self._call(_aten.copy_.default, slices[position], part)
        for position, owner in placed.items():
            self._write_into(owner, slices[position])
        node.replace_all_uses_with(whole)
        self._graph.erase_node(node)

    def _write_into(self, owner: Node, place: Node) -> None:
        if owner.target is _aten.empty.memory_format:  # the whole of another cat
            owner.replace_all_uses_with(place)
            self._graph.erase_node(owner)
            return
        out = out_variant(owner.target, self._edits.target)
        assert out is not None  # it would not be placed
        takes = {argument.name for argument in out._schema.arguments}
        kwargs = {name: value for name, value in owner.kwargs.items() if name in takes}
        (name,) = written_names(out._schema)
        with self._graph.inserting_before(owner):
            made = self._call(out, *owner.args, **kwargs, **{name: place})
        made.meta |= copied(owner)
        owner.replace_all_uses_with(place)
        self._graph.erase_node(owner)

    def _call(self, target: torch._ops.OpOverload, *args: Argument, **kwargs: Argument) -> Node:
        node = self._graph.call_function(target, args, kwargs)
        node.meta["val"] = fake_result(self._mode, target, args, kwargs)
        node.meta |= copied(self._node)
        return node
