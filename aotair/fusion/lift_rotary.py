"""A rotary embedding by rotated halves -> npu_rotary_mul."""

import torch

from .matcher import KeywordArg, PatternExpr, call, part
from .npu import HALVES, dtype_text, val
from .rule import Fused, Rule

_aten, _npu = torch.ops.aten, torch.ops.npu
_X, _COS, _SIN = KeywordArg("x"), KeywordArg("cos"), KeywordArg("sin")
_WIDEST = 896  # the last dimension that the kernel takes


def _half(number: int) -> PatternExpr:
    return call(_aten.slice.Tensor, _X, *(KeywordArg(f"{name}{number}") for name in ("dim", "start", "end")))


_FIRST, _SECOND = _half(1), _half(2)
_SPLIT = call(_aten.split.Tensor, _X, KeywordArg("size"), KeywordArg("dim1"))


def _sums(first: PatternExpr, second: PatternExpr) -> list[PatternExpr]:
    """x * cos + turned * sin with the arguments of each op in either order."""
    mul, turned = _aten.mul.Tensor, call(_aten.cat.default, [call(_aten.neg.default, second), first], KeywordArg("dim"))
    ahead = [call(mul, _X, _COS), call(mul, _COS, _X)]
    around = [call(mul, turned, _SIN), call(mul, _SIN, turned)]
    return [call(_aten.add.Tensor, *pair) for a in ahead for b in around for pair in ((a, b), (b, a))]


def _check_slices(x, cos, sin, first, second, dim, dim1, dim2, start1, start2) -> str | None:
    half = val(x).shape[-1] // 2
    if (val(first).shape[-1], val(second).shape[-1], start1, start2) != (half, half, 0, half):
        return f"the last dimension of {x.name} is not cut into halves"
    return _refuses(x, cos, sin, dim, dim1, dim2)


def _check_split(x, cos, sin, size, dim, dim1) -> str | None:
    if val(x).shape[-1] != 2 * size:
        return f"the last dimension of {x.name} is not split into halves"
    return _refuses(x, cos, sin, dim, dim1)


def _refuses(x, cos, sin, *dims: int) -> str | None:
    rank, width = val(x).dim(), val(x).shape[-1]
    if rank != 4:
        return f"{x.name} has {rank} dimensions, npu_rotary_mul takes 4"
    if {dim % rank for dim in dims} != {rank - 1}:
        return "what is turned is not the last dimension"
    if val(x).dtype not in (*HALVES, torch.float32):
        return f"{x.name} is {dtype_text(x)}"
    if not isinstance(width, int) or width % 2 or width > _WIDEST:
        return f"the last dimension of {x.name}, {width}, is not an even number up to {_WIDEST}"
    for node in (cos, sin):
        if val(node).dtype != val(x).dtype:
            return f"{node.name} is {dtype_text(node)} and {x.name} is {dtype_text(x)}"
        if val(node).dim() != 4 or val(node).shape[-1] != width:
            return f"{node.name} has the shape {list(val(node).shape)}"
    return None


def _replace(x, cos, sin):
    return (_npu.npu_rotary_mul.default(x, cos, sin),)


def _variants() -> tuple[Fused, ...]:
    slices = {"first": _FIRST, "second": _SECOND}
    return (
        *(Fused(pattern, _replace, _check_slices, slices) for pattern in _sums(_FIRST, _SECOND)),
        *(Fused(pattern, _replace, _check_split) for pattern in _sums(part(_SPLIT, 0), part(_SPLIT, 1))),
    )


RULE = Rule("lift_rotary", "x * cos + rotate_half(x) * sin -> npu_rotary_mul", _variants(), lifts=True)
