"""A rotary embedding by rotated halves -> npu_rotary_mul."""

import torch

from .matcher import KeywordArg, PatternExpr, call
from .npu import HALVES, dtype_text, val
from .rule import Fused, Rule

_aten, _npu = torch.ops.aten, torch.ops.npu
_X, _COS, _SIN = KeywordArg("x"), KeywordArg("cos"), KeywordArg("sin")
_WIDEST = 896  # the last dimension that the kernel takes


def _half(number: int) -> PatternExpr:
    return call(_aten.slice.Tensor, _X, *(KeywordArg(f"{name}{number}") for name in ("dim", "start", "end")))


_FIRST, _SECOND = _half(1), _half(2)
_TURNED = call(_aten.cat.default, [call(_aten.neg.default, _SECOND), _FIRST], KeywordArg("dim"))


def _products() -> list[PatternExpr]:
    mul = _aten.mul.Tensor
    straight = [call(mul, _X, _COS), call(mul, _COS, _X)]
    turned = [call(mul, _TURNED, _SIN), call(mul, _SIN, _TURNED)]
    return [call(_aten.add.Tensor, *pair) for s in straight for t in turned for pair in ((s, t), (t, s))]


def _check(x, cos, sin, first, second, dim, dim1, dim2, start1, start2) -> str | None:
    rank, width = val(x).dim(), val(x).shape[-1]
    if rank != 4:
        return f"{x.name} has {rank} dimensions, npu_rotary_mul takes 4"
    if val(x).dtype not in (*HALVES, torch.float32):
        return f"{x.name} is {dtype_text(x)}"
    if not isinstance(width, int) or width % 2 or width > _WIDEST:
        return f"the last dimension of {x.name}, {width}, is not an even number up to {_WIDEST}"
    if {dim % rank, dim1 % rank, dim2 % rank} != {rank - 1}:
        return "what is turned is not the last dimension"
    halves = (val(first).shape[-1], val(second).shape[-1], start1, start2)
    if halves != (width // 2, width // 2, 0, width // 2):
        return f"the last dimension of {x.name} is not cut into halves"
    for node in (cos, sin):
        if val(node).dtype != val(x).dtype:
            return f"{node.name} is {dtype_text(node)} and {x.name} is {dtype_text(x)}"
        if val(node).dim() != 4 or val(node).shape[-1] != width:
            return f"{node.name} has the shape {list(val(node).shape)}"
    return None


def _replace(x, cos, sin):
    return (_npu.npu_rotary_mul.default(x, cos, sin),)


RULE = Rule(
    "lift_rotary",
    "x * cos + rotate_half(x) * sin -> npu_rotary_mul",
    tuple(Fused(pattern, _replace, _check, {"first": _FIRST, "second": _SECOND}) for pattern in _products()),
    lifts=True,
)
