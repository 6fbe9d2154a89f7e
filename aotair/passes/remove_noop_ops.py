"""Remove ops that return their input unchanged: same values, dtype, shape and strides.

Left alone: anything whose input shares memory with a tensor that the graph writes to, because there a copy separates
the old value from the new one.
"""

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.fx.node import Node

_aten = torch.ops.aten
# Ops that hand on the values of their first argument; whether they change anything else is seen from the layouts.
_SAME_VALUES = frozenset(
    {
        _aten.alias.default,
        _aten.clone.default,
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


def run(module: torch.fx.GraphModule) -> int:
    written = written_roots(module.graph)
    removed = 0
    for node in list(module.graph.nodes):
        if node.target in _SAME_VALUES and _changes_nothing(node) and root(node.args[0]) not in written:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
            removed += 1
    return removed


def root(node: Node) -> Node:
    """The node whose memory `node` looks at, through views."""
    while isinstance(node.target, torch._ops.OpOverload) and node.args and isinstance(node.args[0], Node):
        arguments = node.target._schema.arguments
        if not arguments or arguments[0].alias_info is None:
            break
        node = node.args[0]
    return node


def written_roots(graph: torch.fx.Graph) -> set[Node]:
    """The roots of all tensors that some op of the graph writes to."""
    written = set()
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            for position, argument in enumerate(node.target._schema.arguments):
                value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
                if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Node):
                    written.add(root(value))
    return written


def _changes_nothing(node: Node) -> bool:
    before, after = node.args[0].meta["val"], node.meta["val"]
    if before.dtype != after.dtype or before.device != after.device or before.dim() != after.dim():
        return False
    if not statically_known_true(sym_eq(before.shape, after.shape)):
        return False
    if not statically_known_true(sym_eq(before.stride(), after.stride())):
        return False
    # Equal sizes hide a swap of two equal dimensions only where the strides are equal too, that is, where the
    # dimensions have size one or overlap; moving those changes nothing, but two overlapping ones are left alone.
    return node.target not in _REORDERS or all(statically_known_true(stride != 0) for stride in after.stride())
