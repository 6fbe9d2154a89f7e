"""A batched product whose first two dimensions are swapped, perhaps its first argument's too -> one op."""

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.fx.node import Node

from ..matcher import Either, KeywordArg, PatternExpr, call
from ..rule import Fused, Results, Rule
from .npu import dtype_text, val

_aten, _npu = torch.ops.aten, torch.ops.npu
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MULTIPLE, _MOST = 128, 65536  # what the kernel's tiles ask of the last dimensions, and of what is summed


def _unless_viewed(source: PatternExpr, number: str) -> Either:
    """`source`, perhaps through a view or an expand that must change nothing."""
    views = [call(_aten.view.default, source, KeywordArg(f"view{number}"))]
    views += [call(_aten.expand.default, source, KeywordArg(f"expand{number}"))]
    views += [call(_aten.view.default, call(_aten.expand.default, source, KeywordArg("e")), KeywordArg("v"))]
    return Either(*views, source)


def _swap(source: PatternExpr, first: str, second: str) -> PatternExpr:
    return call(_aten.transpose.int, source, KeywordArg(first), KeywordArg(second))


_SWAPPED = _swap(KeywordArg("x1"), "in0", "in1")
_LEFT = _unless_viewed(_SWAPPED, "1")


def _product(left: PatternExpr) -> tuple[PatternExpr, PatternExpr, PatternExpr]:
    product = call(_aten.bmm.default, left, KeywordArg("x2"))
    viewed = _unless_viewed(product, "2")
    return _swap(viewed, "out0", "out1"), product, viewed


def _other_swap(what: str, node: Node, first: int, second: int) -> str | None:
    """Why transposing `node` by these dimensions is not what the kernel does, or nothing."""
    rank = val(node).dim()
    if rank != 3:
        shape = list(val(node).shape)
        return f"{what} has {rank} dimensions, {shape}: the kernel takes matrices with one batch dimension"
    if {first % rank, second % rank} != {0, 1}:
        return f"{what} is transposed by ({first}, {second}), not (0, 1)"
    return None


def _refuses(left: Node, x2: Node, product: Node, viewed: Node, out0: int, out1: int) -> str | None:
    """What the kernel asks; left is the first argument as the product takes it."""
    reason = _other_swap("the result", viewed, out0, out1)
    if reason is not None:
        return reason
    if not _same(viewed, product):
        return f"{viewed.name} changes the shape of the product"
    if val(left).dtype not in _DTYPES or val(left).dtype != val(x2).dtype:
        return f"{left.name} is {dtype_text(left)} and {x2.name} is {dtype_text(x2)}"
    for node in (left, x2):
        for size in val(node).shape:
            if isinstance(size, int) and not 0 < size < _MOST:
                return f"{node.name} has a dimension of {size}, the kernel takes 1 to {_MOST - 1}"
        width = val(node).shape[-1]
        if not isinstance(width, int):
            return f"the last dimension of {node.name} is symbolic"
        if width % _MULTIPLE:
            return f"the last dimension of {node.name}, {width}, is not a multiple of {_MULTIPLE}"
    return None


def _same(one: Node, other: Node) -> bool:
    a, b = val(one), val(other)
    return a.dim() == b.dim() and statically_known_true(sym_eq(tuple(a.shape), tuple(b.shape)))


def _check_plain(x1: Node, x2: Node, product: Node, viewed: Node, out0: int, out1: int) -> str | None:
    return _refuses(x1, x2, product, viewed, out0, out1)


def _check_swapped(
    x1: Node, x2: Node, swapped: Node, left: Node, product: Node, viewed: Node, in0: int, in1: int, out0: int, out1: int
) -> str | None:
    reason = _other_swap(x1.name, x1, in0, in1)
    if reason is None and not _same(left, swapped):
        reason = f"{left.name} changes the shape of the first argument"
    reason = reason or _refuses(left, x2, product, viewed, out0, out1)
    if reason is not None:
        return reason
    row = val(x1).shape[1] * val(x1).shape[2]
    if not statically_known_true(row < _MOST):
        return f"a row of {x1.name} has {row} numbers, the kernel takes less than {_MOST}"
    return None


def _replace_plain(x1: torch.Tensor, x2: torch.Tensor) -> Results:
    return (_npu.npu_transpose_batchmatmul.default(x1, x2, perm_x1=[0, 1, 2]),)


def _replace_swapped(x1: torch.Tensor, x2: torch.Tensor) -> Results:
    return (_npu.npu_transpose_batchmatmul.default(x1, x2, perm_x1=[1, 0, 2]),)


def _variants() -> tuple[Fused, Fused]:
    pattern, product, viewed = _product(_LEFT)
    named = {"swapped": _SWAPPED, "left": _LEFT, "product": product, "viewed": viewed}
    swapped = Fused(pattern, _replace_swapped, _check_swapped, named)
    pattern, product, viewed = _product(KeywordArg("x1"))
    return swapped, Fused(pattern, _replace_plain, _check_plain, {"product": product, "viewed": viewed})


RULE = Rule("transpose_batchmatmul", "bmm, transpose(0, 1) -> npu_transpose_batchmatmul", _variants())
