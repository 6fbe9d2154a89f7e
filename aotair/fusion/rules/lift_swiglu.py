"""silu(gate) * up -> npu_swiglu; gelu(gate) * up -> npu_geglu."""

import functools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.fx.node import Node

from ..matcher import KeywordArg, PatternExpr, call, commutes, part
from ..rule import Fused, Results, Rule
from .npu import HALVES, dtype_text, same, val

_aten, _npu = torch.ops.aten, torch.ops.npu
Active: TypeAlias = Callable[[PatternExpr], PatternExpr]  # the pattern of an activation's call
Replace: TypeAlias = Callable[..., Results]
_DTYPES = (*HALVES, torch.float32)


_SILU = functools.partial(call, _aten.silu.default)
_GELU = functools.partial(call, _aten.gelu.default)
_TANH = functools.partial(call, _aten.gelu.default, approximate="tanh")


def _gated(active: Active, gate: PatternExpr, up: PatternExpr) -> tuple[PatternExpr, ...]:
    """The product with its arguments in either order."""
    return commutes(_aten.mul.Tensor, active(gate), up).choices


def _check(gate: Node, up: Node) -> str | None:
    for node in (gate, up):
        if val(node).dtype not in _DTYPES:
            return f"{node.name} is {dtype_text(node)}"
    if val(gate).dtype != val(up).dtype:
        return f"{gate.name} is {dtype_text(gate)} and {up.name} is {dtype_text(up)}"
    if val(gate).dim() == 0 or val(gate).dim() != val(up).dim() or not all(map(same, val(gate).shape, val(up).shape)):
        return f"{gate.name} and {up.name} have different shapes: {list(val(gate).shape)} and {list(val(up).shape)}"
    return None


def _check_halves(x: Node, size: int | Node, dim: int) -> str | None:
    if isinstance(size, Node):
        return f"{x.name} is split by a symbolic size"
    if dim % val(x).dim() != val(x).dim() - 1 or val(x).shape[-1] != 2 * size:
        return f"{x.name} is not split into halves of its last dimension"
    return None if val(x).dtype in _DTYPES else f"{x.name} is {dtype_text(x)}"


def _replace(gate: torch.Tensor, up: torch.Tensor) -> Results:
    return (_npu.npu_swiglu.default(torch.cat([gate, up], -1), -1),)


def _replace_halves(x: torch.Tensor) -> Results:
    return (_npu.npu_swiglu.default(x, -1),)


def _replace_gelu(gate: torch.Tensor, up: torch.Tensor, *, approximate: int) -> Results:
    return (_npu.npu_geglu.default(torch.cat([gate, up], -1), -1, approximate, True)[0],)


def _replace_gelu_halves(x: torch.Tensor, *, approximate: int) -> Results:
    return (_npu.npu_geglu.default(x, -1, approximate, True)[0],)


def _of(active: Active, whole: Replace, apart: Replace) -> tuple[Fused, ...]:
    halves = call(_aten.split.Tensor, KeywordArg("x"), KeywordArg("size"), KeywordArg("dim"))
    parts = part(halves, 0), part(halves, 1)
    return (
        *(Fused(one, whole, _check_halves) for one in _gated(active, *parts)),
        *(Fused(one, apart, _check) for one in _gated(active, KeywordArg("gate"), KeywordArg("up"))),
    )


def _variants() -> tuple[Fused, ...]:
    found = _of(_SILU, _replace_halves, _replace)
    for active, approximate in ((_TANH, 1), (_GELU, 0)):  # the second would match the first's calls, and say no
        given = functools.partial(_replace_gelu_halves, approximate=approximate)
        found += _of(active, given, functools.partial(_replace_gelu, approximate=approximate))
    return found


RULE = Rule("lift_swiglu", "silu(gate) * up -> npu_swiglu, gelu(gate) * up -> npu_geglu", _variants(), lifts=True)
