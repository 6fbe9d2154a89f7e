"""add_rms_norm whose result is flattened to rows and quantised -> one op that does both, then the same views."""

import functools

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.fx.node import Node

from ..matcher import KeywordArg, MultiOutputPattern, call, part
from ..rule import Fused, Results, Rule
from .npu import ADDED_NORM, added_norm_refuses

_npu, _view = torch.ops.npu, torch.ops.aten.view.default
_FLAT = call(_view, part(ADDED_NORM, 0), KeywordArg("sizes"))


def _replace(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6, *, keeps_sum: bool
) -> Results:
    y, _, x, scale, _ = _npu.npu_add_rms_norm_dynamic_quant.default(
        x1, x2, gamma, epsilon=epsilon, output_mask=[True, False]
    )
    results = y.flatten(0, 1), scale.view(-1, 1)
    return (*results, x) if keeps_sum else results


def _check(x1: Node, x2: Node, gamma: Node, flat: Node) -> str | None:
    shape, flattened = x1.meta["val"].shape, flat.meta["val"].shape
    expected = (shape[0] * shape[1], *shape[2:]) if len(shape) > 2 else ()
    if len(flattened) != len(expected) or not statically_known_true(sym_eq(tuple(flattened), expected)):
        return f"{flat.name} is not flatten(0, 1): {list(shape)} becomes {list(flattened)}"
    return added_norm_refuses(x1, x2, gamma)


def _variant(*, keeps_sum: bool) -> Fused:
    quantised = call(_npu.npu_dynamic_quant.default, _FLAT)
    column = call(_view, part(quantised, 1), KeywordArg("column"))
    outputs = [part(quantised, 0), column, *([part(ADDED_NORM, 2)] if keeps_sum else [])]
    replace = functools.partial(_replace, keeps_sum=keeps_sum)
    return Fused(MultiOutputPattern(outputs), replace, _check, {"flat": _FLAT})


RULE = Rule(
    "add_rms_norm_flatten_dynamic_quant",
    "npu_add_rms_norm, flatten(0, 1), npu_dynamic_quant, view(-1, 1) of the scales -> npu_add_rms_norm_dynamic_quant",
    (_variant(keeps_sum=True), _variant(keeps_sum=False)),
)
