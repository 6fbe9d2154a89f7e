"""An RMS norm in the spellings of transformers' models -> npu_rms_norm."""

from collections.abc import Sequence

import torch
from torch.fx.node import Node

from ...ops import npu as _defined  # noqa: F401 (the ops that this rule names)
from ..matcher import Either, KeywordArg, PatternExpr, call, commutes
from ..rule import Fused, Results, Rule
from .npu import HALVES, dtype_text, val

_aten, _npu = torch.ops.aten, torch.ops.npu
_mul, _pow, _cast = _aten.mul.Tensor, _aten.pow.Tensor_Scalar, _aten._to_copy.default

_X, _GAMMA = KeywordArg("x"), KeywordArg("gamma")
_WIDE = Either(call(_cast, _X, dtype=torch.float32), _X)
_SQUARE = Either(call(_pow, _WIDE, 2), call(_mul, _WIDE, _WIDE), call(_aten.square.default, _WIDE))
_MEAN = call(_aten.mean.dim, _SQUARE, KeywordArg("dims"), True)
_SHIFTED = call(_aten.add.Tensor, _MEAN, KeywordArg("epsilon"))
_ROOT = call(_aten.sqrt.default, _SHIFTED)
_RECIPROCAL = Either(
    call(_aten.rsqrt.default, _SHIFTED), call(_pow, _SHIFTED, -0.5), call(_aten.reciprocal.default, _ROOT)
)
_NORMED = Either(commutes(_mul, _WIDE, _RECIPROCAL), call(_aten.div.Tensor, _WIDE, _ROOT))


def _check(
    x: Node, gamma: Node, wide: Node, dims: Sequence[int], epsilon: object, dtype: torch.dtype | None = None
) -> str | None:
    rank = val(x).dim()
    if not rank:
        return f"{x.name} has no dimension"
    if dtype not in (None, val(x).dtype):
        return f"the norm of {x.name}, {dtype_text(x)}, is cast to {dtype}"
    if [dim % rank for dim in dims] != [rank - 1]:
        return f"the mean goes over {list(dims)}, not over the last dimension"
    if not isinstance(epsilon, float):
        return f"epsilon is {epsilon}, not a number"
    return _refuses(x, gamma, wide)


def _check_op(x: Node, gamma: Node, shape: Sequence[object], epsilon: object = 0.0) -> str | None:
    if not isinstance(epsilon, float):
        return f"epsilon is {epsilon}, not a number"
    return _refuses(x, gamma, None) if len(shape) == 1 else f"it norms over {len(shape)} dimensions"


def _refuses(x: Node, gamma: Node, wide: Node | None) -> str | None:
    if val(x).dtype not in (*HALVES, torch.float32):
        return f"{x.name} is {dtype_text(x)}"
    if wide is not None and val(wide).dtype != torch.float32:
        return f"{x.name} is normed in {dtype_text(wide)}, npu_rms_norm computes in float32"
    if val(gamma).dtype not in (val(x).dtype, torch.float32):
        return f"{gamma.name} is {dtype_text(gamma)} and {x.name} is {dtype_text(x)}"
    if val(gamma).dim() != 1 or val(gamma).shape[0] != val(x).shape[-1]:
        return f"{gamma.name} has the shape {list(val(gamma).shape)}, not that of the last dimension"
    return None


def _replace(x: torch.Tensor, gamma: torch.Tensor, epsilon: float | None = None) -> Results:
    # torch's own norm takes the smallest step of the dtype it computes in.
    epsilon = torch.finfo(torch.float32).eps if epsilon is None else epsilon
    return (_npu.npu_rms_norm.default(x, gamma, epsilon)[0],)


def _spelled(pattern: PatternExpr) -> Fused:
    return Fused(pattern, _replace, _check, {"wide": _WIDE})


def _weighted(normed: PatternExpr) -> tuple[PatternExpr, PatternExpr]:
    return call(_mul, _GAMMA, normed), call(_mul, normed, _GAMMA)


def _variants() -> tuple[Fused, ...]:
    narrow = Either(call(_cast, _NORMED, dtype=KeywordArg("dtype")), _NORMED)
    last = [call(_cast, product, dtype=KeywordArg("dtype")) for product in _weighted(_NORMED)]
    shape = KeywordArg("shape")
    ops = [
        Fused(call(_aten.rms_norm.default, _X, shape, _GAMMA, *epsilon), _replace, _check_op)
        for epsilon in ([KeywordArg("epsilon")], [])
    ]
    return (*map(_spelled, (*last, *_weighted(narrow))), *ops)


RULE = Rule("lift_rms_norm", "an RMS norm of plain ops, or aten.rms_norm -> npu_rms_norm", _variants(), lifts=True)
