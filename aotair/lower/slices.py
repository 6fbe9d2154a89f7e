"""Cutting a call that cannot write into planned memory into slices, so that what it allocates by itself stays small.

A CPU kernel without an out variant allocates its result, which is then copied to its place. In slices along the
first dimension the copy stays in the processor's cache, and the process does not grow by the largest result.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch.fx.node import Node, Target

_aten = torch.ops.aten
LIMIT = 1 << 20  # bytes of result that one call may allocate

# Ops that treat each index of the first dimension alone, and the arguments that have this dimension.
_BY_FIRST_DIMENSION: Mapping[Target, tuple[str, ...]] = {
    _aten.layer_norm.default: ("input",),
    _aten.rms_norm.default: ("input",),
    _aten.scaled_dot_product_attention.default: ("query", "key", "value", "attn_mask"),
}


def sliced_arguments(node: Node) -> tuple[str, ...]:
    """The arguments to slice along their first dimension, or nothing where the call must stay whole."""
    op, result = node.target, node.meta["val"]
    names = _BY_FIRST_DIMENSION.get(op, ())
    if (
        not names
        or not isinstance(op, torch._ops.OpOverload)
        or not isinstance(result, torch.Tensor)
        or result.dim() < 2
    ):
        return ()
    if _normalised_rank(node) >= result.dim():
        return ()
    given = dict(zip((a.name for a in op._schema.arguments), node.args)) | dict(node.kwargs)
    rows = result.shape[0]
    sliced = []
    for name in names:
        value = given.get(name)
        if not isinstance(value, Node):
            continue
        tensor = value.meta["val"]
        if tensor.dim() == result.dim() and tensor.shape[0] == rows:
            sliced.append(name)
        elif name != "attn_mask":
            return ()
    return tuple(sliced)


def slice_bounds(node: Node) -> list[tuple[int, int]]:
    """The slices [start, stop) of the first dimension, each with a result of at most LIMIT bytes where possible."""
    result = node.meta["val"]
    rows = result.shape[0]
    row = math.prod(result.shape[1:]) * result.element_size()
    step = max(1, LIMIT // max(1, row))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def _normalised_rank(node: Node) -> int:
    """How many trailing dimensions a norm reduces over; none for attention, which never mixes the first dimension."""
    if node.target is _aten.scaled_dot_product_attention.default:
        return 0
    shape = node.args[1]
    assert isinstance(shape, Sequence)  # so the ops' schemas have it
    return len(shape)
