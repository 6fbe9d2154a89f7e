"""Remove ops that return their input unchanged: same values, dtype, shape and strides.

Left alone: anything whose input, or whose result, shares memory with a tensor that the graph writes to, because there a
copy separates the old value from the new one. Unless it is an intermediate that nobody uses after it was copied. Also a
copy of an input that is returned: whoever writes `return x.clone()` wants memory of his own.
"""

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.fx.node import Argument, Node

from ..graph.alias import Uses, written_roots
from ..graph.operand import operands
from .edits import Edits
from .streams import labels

_aten = torch.ops.aten
# Ops that hand on the values of an argument; whether they change anything else is seen from the layouts.
_SAME_VALUES = frozenset(
    {
        _aten.alias.default,
        _aten.clone.default,
        _aten.copy.default,
        _aten.detach.default,
        _aten.expand.default,
        _aten.lift_fresh_copy.default,
        _aten.permute.default,
        _aten.repeat.default,
        _aten.slice.Tensor,
        _aten.transpose.int,
        _aten.view.default,
        _aten._to_copy.default,
        _aten._unsafe_view.default,
    }
)
_REORDERS = frozenset({_aten.permute.default, _aten.transpose.int})
_BY_NUMBER = frozenset({_aten.mul.Tensor, _aten.div.Tensor})  # what gives the same values for the number one


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    one_stream = not any(labels(module.graph).values())
    written, uses = written_roots(module.graph), Uses(module.graph)
    returned = {uses.root(node) for node in operands(module.graph.output_node())}
    for node in list(module.graph.nodes):
        if (
            not (node.target in _SAME_VALUES or _is_by_one(node))
            or not isinstance(source := node.args[_source(node)], Node)
            or not _changes_nothing(node, source)
        ):
            continue
        owner, mine = uses.root(source), uses.root(node)
        dies = one_stream and owner.op != "placeholder" and uses.last(source) <= uses.position[node]
        if owner in written:
            edits.declined(node, f"the memory of {source.name} is written elsewhere")
        elif mine in written and not dies:
            edits.declined(node, f"it is written into, and {source.name} is not to change")
        elif owner.op == "placeholder" and mine is node and mine in returned:
            edits.declined(node, f"it is returned, and {source.name} is not to be")
        elif edits.may(node, "changes nothing"):
            node.replace_all_uses_with(source)
            module.graph.erase_node(node)
            uses.merge(node, source)
            if mine in written:
                written.add(uses.root(source))


def _is_by_one(node: Node) -> bool:
    return node.target in _BY_NUMBER and len(node.args) == 2 and _is_one(node.args[1])


def _is_one(value: Argument) -> bool:
    return type(value) in (int, float) and bool(value == 1)


def _source(node: Node) -> int:
    """The position of the argument whose values the op hands on."""
    return 1 if node.target is _aten.copy.default else 0


def _changes_nothing(node: Node, source: Node) -> bool:
    before, after = source.meta["val"], node.meta["val"]
    if before.dtype != after.dtype or before.device != after.device or before.dim() != after.dim():
        return False
    if not statically_known_true(sym_eq(before.shape, after.shape)):
        return False
    if not statically_known_true(sym_eq(before.stride(), after.stride())):
        return False
    # Equal sizes hide a swap of two equal dimensions only where the strides are equal too, that is, where the
    # dimensions have size one or overlap; moving those changes nothing, but two overlapping ones are left alone.
    return node.target not in _REORDERS or all(statically_known_true(stride != 0) for stride in after.stride())
