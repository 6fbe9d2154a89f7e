"""What the rules for products that meet other ranks have in common."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch.fx.node import Node

from aotair_runtime.format.mesh import COLLECTIVES, group_argument

from ...graph.sizes import most
from ...ops import row_products
from ...ops.npu.meeting_products import SIZES
from ...ops.rows import ALL, SUM
from ...target.target import Target
from ..matcher import CallFunction, KeywordArg, PatternExpr, call
from .npu import not_halves, val

_aten = torch.ops.aten
Turn: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
# Rows for which products and messages can go on at the same time: the kernels cut them into pieces, of 128 at least.
_LEAST_ROWS = 128
_MOST_K = 65535
ANY = tuple(range(2, 9))  # dimensions, of a factor whose rows are put one behind the other
_FUSED = tuple(f"npu::{name}" for name in COLLECTIVES["npu"][1])
_LIKE = ("air::all_reduce", "air::reduce_scatter", "air::all_gather", *_FUSED)
_BY_ROWS = frozenset({SUM, ALL}) | row_products.TAKEN_APART


def products(left: PatternExpr) -> tuple[tuple[CallFunction, Turn], ...]:
    """`left` times `right`, perhaps plus `bias`: as a linear layer with a weight (n, k), or as a product of matrices;
    and how `right` becomes what the kernels take, (k, n)."""
    right, bias = KeywordArg("right"), KeywordArg("bias")
    return (
        (call(_aten.linear.default, left, right), torch.t),
        (call(_aten.mm.default, left, right), _as_it_is),
        (call(_aten.linear.default, left, right, bias), torch.t),
        (call(_aten.addmm.default, bias, left, right), _as_it_is),
    )


def _as_it_is(right: torch.Tensor) -> torch.Tensor:
    return right


def no_sum(reduce: str, bias: object | None) -> str | None:
    """Why what the ranks do with their products is not what the kernels do."""
    if bias is not None:
        return "each rank adds a bias before the sum, which the fused kernel does not"
    return None if reduce == "sum" else f"the ranks take the {reduce}, the fused kernel takes their sum"


def refuses(
    device: Target,
    axis: object,
    left: Node,
    right: Node,
    rows: int | torch.SymInt,
    *,
    dims: Sequence[int] = (2,),
    least_k: int = 256,
) -> str | None:
    """What the kernels ask of the ranks, of the factors, and of the rows of the whole product."""
    ranks = device.ranks(axis)
    for node, known in ((left, dims), (right, (2,))):
        if val(node).dim() not in known:
            takes = " or ".join(map(str, known))
            return f"{node.name} has {val(node).dim()} dimensions, the fused kernel takes {takes}"
    if ranks not in SIZES:
        return f"the axis {axis} has {ranks} ranks, the fused kernel takes {', '.join(map(str, SIZES))}"
    if (chosen := _axis(left.graph, device)) != axis:
        return f"the fused kernels of a program all meet the same ranks: those of {chosen}, along which more meet"
    if not val(left).is_contiguous():
        return f"{left.name} has gaps or is transposed, the fused kernel takes no such"
    if not isinstance(val(left).shape[-1], int):
        return f"the last dimension of {left.name} is symbolic"
    if not least_k <= val(left).shape[-1] <= _MOST_K:
        return f"{left.name} has rows of {val(left).shape[-1]}, the fused kernel takes {least_k} to {_MOST_K}"
    if most(rows) < _LEAST_ROWS:
        return f"no call has more than {most(rows)} rows: below {_LEAST_ROWS} nothing goes on at the same time"
    return not_halves(left, right)


def _axis(graph: torch.fx.Graph, device: Target) -> str:
    """Of the axes whose ranks add up, share out or gather in a graph: that along which they do so most often, and of
    several the last of the mesh, whose ranks are neighbours."""
    places = {axis.name: place for place, axis in enumerate(device.mesh) if axis.size in SIZES}
    if len(places) == 1:
        return next(iter(places))
    counts = Counter(name for name in map(_met, graph.nodes) if name in places)
    return max(counts, key=lambda name: (counts[name], places[name]))


def _met(node: Node) -> str:
    """The axis that a call names, where the kernels do something like it; nothing for another."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or not (op in _BY_ROWS or op.name() in _LIKE):
        return ""
    named = "axis" if op in _BY_ROWS else group_argument(op.name())
    return next(str(arg) for arg, argument in zip(node.args, op._schema.arguments) if argument.name == named)
