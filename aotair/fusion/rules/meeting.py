"""What the rules for products that meet other ranks have in common."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.fx.node import Node
from torch.utils._sympy.numbers import int_oo

from ...target.target import Target
from ..matcher import CallFunction, KeywordArg, PatternExpr, call
from .npu import not_halves, val

_aten = torch.ops.aten
Turn: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
# Rows for which products and messages can go on at the same time: the kernels cut them into pieces, of 128 at least.
_LEAST_ROWS = 128
_SIZES = (2, 4, 8)  # of the groups that the kernels of Atlas A2 know
_MOST_K = 65535


def products(left: PatternExpr) -> tuple[tuple[CallFunction, Turn], ...]:
    """`left` times `right`: as a linear layer with a weight (n, k), or as a product of matrices; and how `right`
    becomes what the kernels take, (k, n)."""
    return (
        (call(_aten.linear.default, left, KeywordArg("right")), torch.t),
        (call(_aten.mm.default, left, KeywordArg("right")), lambda right: right),
    )


def refuses(
    device: Target, axis: object, left: Node, right: Node, rows: int | torch.SymInt, least_k: int
) -> str | None:
    """What the kernels ask of the ranks, of the factors, and of the rows of the whole product."""
    ranks = device.ranks(axis)
    if ranks not in _SIZES:
        return f"the axis {axis} has {ranks} ranks, the fused kernel takes {', '.join(map(str, _SIZES))}"
    if (first := device.mesh[0].name) != axis and device.ranks(first) > 1:
        return f"the fused kernels of a program all meet the same ranks: those of {first}"
    if not val(left).is_contiguous():
        return f"{left.name} has gaps or is transposed, the fused kernel takes no such"
    if not isinstance(val(left).shape[-1], int):
        return f"the last dimension of {left.name} is symbolic"
    if not least_k <= val(left).shape[-1] <= _MOST_K:
        return f"{left.name} has rows of {val(left).shape[-1]}, the fused kernel takes {least_k} to {_MOST_K}"
    if _most(rows) < _LEAST_ROWS:
        return f"no call has more than {_most(rows)} rows: below {_LEAST_ROWS} nothing goes on at the same time"
    return not_halves(left, right)


def _most(size: int | torch.SymInt) -> float:
    """The largest that a size can be."""
    if isinstance(size, int):
        return size
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    return float("inf") if upper is int_oo else int(upper)
