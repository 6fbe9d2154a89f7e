"""add_rms_norm whose result is wanted as float32, perhaps as rows -> one op that gives both."""

import functools

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import Node

from ..matcher import KeywordArg, MultiOutputPattern, call, part
from ..rule import Fused, Results, Rule
from .npu import ADDED_NORM, added_norm_refuses

_aten, _npu = torch.ops.aten, torch.ops.npu
_Y = part(ADDED_NORM, 0)
_ROWS = call(_aten.view.default, _Y, KeywordArg("sizes"))


def _replace(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6, *, as_rows: bool, keeps_sum: bool
) -> Results:
    wide, y, _, x = _npu.npu_add_rms_norm_cast.default(x1, x2, gamma, epsilon)
    rows = (wide.view(-1, y.size(-1)), y.view(-1, y.size(-1))) if as_rows else (wide,)
    return (*rows, y, x) if keeps_sum else (*rows, y)


def _check(x1: Node, x2: Node, gamma: Node, rows: Node | None = None) -> str | None:
    if rows is not None:
        width, shape = x1.meta["val"].shape[-1], rows.meta["val"].shape
        if len(shape) != 2 or not statically_known_true(shape[1] == width):
            return f"{rows.name} does not keep the last dimension {width}: {list(shape)}"
    return added_norm_refuses(x1, x2, gamma)


def _variant(cast: torch._ops.OpOverload, *, as_rows: bool, keeps_sum: bool) -> Fused:
    source = _ROWS if as_rows else _Y
    by_name = cast is _aten._to_copy.default
    wide = call(cast, source, dtype=torch.float32) if by_name else call(cast, source, torch.float32)
    outputs = [wide, *([_ROWS] if as_rows else []), _Y, *([part(ADDED_NORM, 2)] if keeps_sum else [])]
    replace = functools.partial(_replace, as_rows=as_rows, keeps_sum=keeps_sum)
    return Fused(MultiOutputPattern(outputs), replace, _check, {"rows": _ROWS} if as_rows else {})


RULE = Rule(
    "add_rms_norm_cast",
    "npu_add_rms_norm, a cast to float32 -> npu_add_rms_norm_cast",
    tuple(
        _variant(cast, as_rows=as_rows, keeps_sum=keeps_sum)
        for cast in (_npu._npu_dtype_cast.default, _aten._to_copy.default)
        for as_rows in (True, False)
        for keeps_sum in (True, False)
    ),
)
