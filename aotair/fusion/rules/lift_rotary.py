"""A rotary embedding by rotated halves, by rotated neighbours, or half by half -> npu_rotary_mul."""

from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import Node

from ..matcher import KeywordArg, PatternExpr, call, part
from ..rule import Fused, Results, Rule
from .npu import HALVES, dtype_text, same, val

_aten, _npu = torch.ops.aten, torch.ops.npu
_X, _COS, _SIN = KeywordArg("x"), KeywordArg("cos"), KeywordArg("sin")
_WIDE, _MANY = 896, 1000  # the last dimension, batch and heads are less
# Which of the first three dimensions cosines and sines have in full; the others are 1. For x as (batch, heads,
# sequence), (batch, sequence, heads) and (sequence, batch, heads).
_LAYOUTS = frozenset({(0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 0), (1, 1, 0), (1, 0, 0)})


def _half(number: int) -> PatternExpr:
    return call(_aten.slice.Tensor, _X, *(KeywordArg(f"{name}{number}") for name in ("dim", "start", "end")))


_FIRST, _SECOND = _half(1), _half(2)
_SPLIT = call(_aten.split.Tensor, _X, KeywordArg("size"), KeywordArg("dim1"))
# Every other element, from the first and from the second.
_EVEN, _ODD = (
    call(_aten.slice.Tensor, _X, *(KeywordArg(f"{name}{number}") for name in ("dim", "start", "end", "step")))
    for number in (1, 2)
)


def _halves(first: PatternExpr, second: PatternExpr) -> PatternExpr:
    return call(_aten.cat.default, [call(_aten.neg.default, second), first], KeywordArg("dim"))


def _neighbours() -> PatternExpr:
    pairs = call(_aten.stack.default, [call(_aten.neg.default, _ODD), _EVEN], KeywordArg("dim"))
    return call([_aten.view.default, _aten._unsafe_view.default], pairs, KeywordArg("flat"))


def _half_by_half(first: PatternExpr, second: PatternExpr) -> PatternExpr:
    """Each half of the result from both of x, with cosines and sines for one half."""
    mul = _aten.mul.Tensor
    ahead = call(_aten.sub.Tensor, call(mul, first, _COS), call(mul, second, _SIN))
    behind = call(_aten.add.Tensor, call(mul, second, _COS), call(mul, first, _SIN))
    return call(_aten.cat.default, [ahead, behind], KeywordArg("dim"))


def _sums(turned: PatternExpr) -> list[PatternExpr]:
    """x * cos + turned * sin with the arguments of each op in either order."""
    mul = _aten.mul.Tensor
    ahead = [call(mul, _X, _COS), call(mul, _COS, _X)]
    around = [call(mul, turned, _SIN), call(mul, _SIN, turned)]
    return [call(_aten.add.Tensor, *pair) for a in ahead for b in around for pair in ((a, b), (b, a))]


def _check_slices(
    x: Node,
    cos: Node,
    sin: Node,
    first: Node,
    second: Node,
    dim: int,
    dim1: int,
    dim2: int,
    start1: object,
    start2: object,
) -> str | None:
    half = val(x).shape[-1] // 2
    if (val(first).shape[-1], val(second).shape[-1], start1, start2) != (half, half, 0, half):
        return f"the last dimension of {x.name} is not cut into halves"
    return _refuses(x, cos, sin, dim, dim1, dim2)


def _check_split(x: Node, cos: Node, sin: Node, size: int | Node, dim: int, dim1: int) -> str | None:
    if isinstance(size, Node):
        return f"{x.name} is split by a symbolic size"
    if val(x).shape[-1] != 2 * size:
        return f"the last dimension of {x.name} is not split into halves"
    return _refuses(x, cos, sin, dim, dim1)


def _check_neighbours(
    x: Node,
    cos: Node,
    sin: Node,
    dim: int,
    flat: Sequence[object],
    dim1: int,
    dim2: int,
    start1: object,
    start2: object,
    step1: object,
    step2: object,
) -> str | None:
    if (start1, start2, step1, step2) != (0, 1, 2, 2) or dim % 5 != 4:
        return f"not every other element of {x.name} is turned"
    reason = _refuses(x, cos, sin, dim1, dim2)
    if reason is not None or len(flat) != 4:
        return reason or f"what is turned of {x.name} has {len(flat)} dimensions"
    first, second, third = (same(size, 1) for size in val(cos).shape[:3])
    if not second and not third:
        return f"{cos.name} has the shape {list(val(cos).shape)}: neighbours are turned alike in every head"
    if not first and not second:
        return f"{cos.name} has the shape {list(val(cos).shape)}: heads come before the sequence where it differs"
    return None


def _check_half_by_half(x: Node, cos: Node, sin: Node, size: int | Node, dim: int, dim1: int) -> str | None:
    if isinstance(size, Node):
        return f"{x.name} is split by a symbolic size"
    if val(x).shape[-1] != 2 * size:
        return f"the last dimension of {x.name} is not split into halves"
    return _refuses(x, cos, sin, dim, dim1, parts=2)


def _check_neighbours_by_half(
    x: Node,
    cos: Node,
    sin: Node,
    dim: int,
    dim1: int,
    dim2: int,
    start1: object,
    start2: object,
    step1: object,
    step2: object,
) -> str | None:
    if (start1, start2, step1, step2) != (0, 1, 2, 2):
        return f"not every other element of {x.name} is turned"
    return _refuses(x, cos, sin, dim, dim1, dim2, parts=2)


def _refuses(x: Node, cos: Node, sin: Node, *dims: int, parts: int = 1) -> str | None:
    """`parts`: of how many that are alike the cosines and sines are one."""
    rank, width = val(x).dim(), val(x).shape[-1]
    if rank != 4:
        return f"{x.name} has {rank} dimensions, npu_rotary_mul takes 4"
    if {dim % rank for dim in dims} != {rank - 1}:
        return "what is turned is not the last dimension"
    if val(x).dtype not in (*HALVES, torch.float32):
        return f"{x.name} is {dtype_text(x)}"
    if not isinstance(width, int) or width % 2 or width >= _WIDE:
        return f"the last dimension of {x.name}, {width}, is not an even number below {_WIDE}"
    if any(isinstance(size, int) and size >= _MANY for size in val(x).shape[:2]):
        return f"{x.name} has {list(val(x).shape[:2])} batches and heads, the kernel takes less than {_MANY}"
    for node in (cos, sin):
        if val(node).dtype not in (*HALVES, torch.float32) or val(node).dtype != val(cos).dtype:
            return f"{node.name} is {dtype_text(node)} and {x.name} is {dtype_text(x)}"
        if val(node).dim() != 4 or val(node).shape[-1] != width // parts or not _spread(val(node).shape, val(x).shape):
            return f"{node.name} has the shape {list(val(node).shape)} for {x.name} of {list(val(x).shape)}"
    return None if all(map(same, val(cos).shape, val(sin).shape)) else f"{cos.name} and {sin.name} differ in shape"


def _spread(shape: torch.Size, whole: torch.Size) -> bool:
    """Whether the kernel takes cosines of `shape` for a tensor of the shape `whole`."""
    full = [same(one, other) for one, other in zip(shape[:3], whole[:3])]
    ones = [same(one, 1) for one in shape[:3]]
    return any(all(f if wanted else o for f, o, wanted in zip(full, ones, layout)) for layout in _LAYOUTS)


def _replace(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Results:
    # The kernel takes one dtype: that in which the products are.
    wide = torch.promote_types(x.dtype, cos.dtype)
    return (_npu.npu_rotary_mul.default(x.to(wide), cos.to(wide), sin.to(wide)),)


def _replace_neighbours(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Results:
    wide = torch.promote_types(x.dtype, cos.dtype)
    x, cos, sin = x.to(wide), cos.to(wide), sin.to(wide)
    if any(statically_known_true(cos.shape[dim] == 1) for dim in (0, 2)):
        return (_npu.npu_rotary_mul.default(x, cos, sin, "interleave"),)
    # The kernel takes one row of cosines for all sequences: these become one sequence.
    batch, heads, length, width = x.shape
    turned = x.transpose(1, 2).reshape(1, batch * length, heads, width)
    rows = [one.reshape(1, batch * length, 1, width) for one in (cos, sin)]
    turned = _npu.npu_rotary_mul.default(turned, *rows, "interleave")
    return (turned.view(batch, length, heads, width).transpose(1, 2),)


def _replace_half_by_half(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Results:
    return _replace(x, torch.cat([cos, cos], -1), torch.cat([sin, sin], -1))


def _replace_neighbours_by_half(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Results:
    return _replace_half_by_half(torch.cat([x[..., 0::2], x[..., 1::2]], -1), cos, sin)


def _check_complex(x: Node) -> str:
    return f"{x.name} is turned as complex numbers, which no kernel of the NPU takes"


def _complex() -> PatternExpr:
    """The form of Llama 4 and DeepSeek-V2, which is told of."""
    product = call(_aten.mul.Tensor, call(_aten.view_as_complex.default, _X), KeywordArg("turn"))
    return call(_aten.view_as_real.default, product)


def _variants() -> tuple[Fused, ...]:
    slices = {"first": _FIRST, "second": _SECOND}
    split = part(_SPLIT, 0), part(_SPLIT, 1)
    return (
        *(Fused(pattern, _replace, _check_slices, slices) for pattern in _sums(_halves(_FIRST, _SECOND))),
        *(Fused(pattern, _replace, _check_split) for pattern in _sums(_halves(*split))),
        *(Fused(pattern, _replace_neighbours, _check_neighbours) for pattern in _sums(_neighbours())),
        Fused(_half_by_half(*split), _replace_half_by_half, _check_half_by_half),
        Fused(_half_by_half(_EVEN, _ODD), _replace_neighbours_by_half, _check_neighbours_by_half),
        Fused(_complex(), _replace, _check_complex),
    )


RULE = Rule(
    "lift_rotary",
    "x * cos + rotate_half(x) * sin, of halves or neighbours -> npu_rotary_mul",
    _variants(),
    lifts=True,
)
