"""Which calls read a weight as the node packs it, and by which op?"""

import math
from collections.abc import Sequence

import torch
from torch._ops import OpOverload
from torch.fx.node import Argument, Node

from aotair_runtime.devices import int8_linear, int8_rows
from aotair_runtime.devices.onednn_convolution import dense_strides, shape_of

from ..graph.derived import is_constant
from ..ops import int4
from ..target.target import Target

_aten = torch.ops.aten


def packed_op(target: Target, op: object, args: Sequence[Argument]) -> OpOverload | None:
    """The op that a node calls with these arguments and its second one packed; None where that is no such call, or not
    faster."""
    if op is _aten.linear.default:
        fits = _is_whole(args) and _has_no_gaps(args[2:]) and target.packs_linear(_dtype(args[1]), _rows(args))
        return _aten.linear.default if fits else None
    if op is _aten.convolution.default:
        return _aten.convolution.default if _is_convolution(target, args) else None
    if op is int4.OP and _is_whole(args) and target.packs_int4(_dtype(args[0]), _rows(args)):
        return _aten._weight_int4pack_mm_for_cpu.default
    return None


def _is_convolution(target: Target, args: Sequence[Argument]) -> bool:
    """Whether it is a convolution of images in channels-last with a constant as it is stored."""
    x, weight, bias, *rest = args
    if not isinstance(x, Node) or not isinstance(weight, Node) or not is_constant(_without_row(weight)):
        return False
    value, stored = x.meta["val"], weight.meta["val"]
    dense = value.dim() == 4 and value.stride() == dense_strides(value.shape)
    if not dense or not stored.is_contiguous() or not _has_no_gaps([bias]) or value.dtype != stored.dtype:
        return False
    fits = target.packs_convolution(stored.dtype) and isinstance(bias, (Node, type(None)))
    return fits and shape_of(value.shape, stored.shape, rest, stored.dtype) is not None


def _without_row(weight: Node) -> Node:
    """The weight of a convolution of sequences, which one of images sees with a row."""
    if weight.target is not _aten.unsqueeze.default or weight.args[1] not in (2, -2):
        return weight
    source = weight.args[0]
    return source if isinstance(source, Node) else weight


def packed_product(target: Target, op: object, args: Sequence[Argument]) -> int | None:
    """The argument of a matrix product, which linear layers are lowered to, that a node may read packed: where the
    weight is whole, and nodes are faster so. The node finds out whether it is."""
    if op is int8_rows.OP:
        return 1 if target.packs and target.kind == "cpu" and _is_whole(args) else None
    if op is int8_linear.MULTIPLY:
        return 1 if target.packs_int8(args[5]) and _is_whole(args) else None
    place = {_aten.mm.default: 1, _aten.addmm.default: 2}.get(op)  # type: ignore[call-overload]  # any object may be asked for
    if place is None:
        return None
    x, view = args[place - 1], args[place]
    if not isinstance(x, Node) or not isinstance(view, Node) or view.target is not _aten.t.default:
        return None
    weight = view.args[0]
    fits = _is_whole((x, weight)) and (place == 1 or _is_bias(args[0], view))
    return place if fits and target.packs_product(_dtype(weight), math.prod(view.meta["val"].shape)) else None


def _is_bias(arg: Argument, weight: Node) -> bool:
    """Whether it has a number for each column of the weight, without gaps."""
    return isinstance(arg, Node) and arg.meta["val"].shape == weight.meta["val"].shape[1:] and _has_no_gaps([arg])


def _is_whole(args: Sequence[Argument]) -> bool:
    """Whether the weight is a constant, as it is stored, and there are rows to multiply."""
    x, weight = args[:2]
    if not isinstance(x, Node) or not isinstance(weight, Node) or not is_constant(weight):
        return False
    value, there = x.meta["val"], weight.meta["val"]
    plain = there.dim() == 2 and there.is_contiguous() and value.is_contiguous() and value.dim() > 1
    return bool(plain and there.numel() and _rows(args))


def _has_no_gaps(bias: Sequence[Argument]) -> bool:
    """Whether a bias, where there is one, lies as the kernel takes for granted."""
    return not any(isinstance(one, Node) and not one.meta["val"].is_contiguous() for one in bias)


def _rows(args: Sequence[Argument]) -> int:
    assert isinstance(args[0], Node)
    return math.prod(args[0].meta["val"].shape[:-1])


def _dtype(arg: Argument) -> torch.dtype:
    assert isinstance(arg, Node)
    kind: torch.dtype = arg.meta["val"].dtype
    return kind
