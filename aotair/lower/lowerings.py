"""Composites that stay whole for fusion, as the kernels that can write into planned memory.

A lowering gets the graph builder and the op's arguments, and returns the node that stands for the result, or None
where it does not apply. None changes a number: each makes the calls that the composite's own CPU kernel makes.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch.fx.node import Argument, Node, Target

from aotair_runtime.devices.onednn_convolution import dense_strides, shape_of

from .graph_builder import GraphBuilder
from .packed import packed_op

_aten = torch.ops.aten
Lowering = Callable[..., Node | None]
# Ops that only copy an argument, perhaps to another dtype or shape: written as a copy into planned memory. Which one.
COPIES: Mapping[Target, int] = {
    _aten.clone.default: 0,
    _aten._to_copy.default: 0,
    _aten.lift_fresh_copy.default: 0,
    _aten.copy.default: 1,
}
# Factories of one value: written as a fill of planned memory. The value, or the name of the argument that has it.
FILLS: Mapping[Target, str | int] = {
    _aten.full.default: "fill_value",
    _aten.full_like.default: "fill_value",
    _aten.new_full.default: "fill_value",
    _aten.scalar_tensor.default: "s",
    _aten.ones.default: 1,
    _aten.ones_like.default: 1,
    _aten.new_ones.default: 1,
    _aten.zeros.default: 0,
    _aten.zeros_like.default: 0,
    _aten.new_zeros.default: 0,
}
UNINITIALISED = frozenset(
    {_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default, _aten.empty_strided.default}
)


def _linear(build: GraphBuilder, x: Node, weight: Node, bias: Node | None = None) -> Node | None:
    """`x @ weight.T + bias` as one matrix product over the flattened rows of x (..., in); weight is (out, in)."""
    value, stored = x.meta["val"], weight.meta["val"]
    if value.dim() < 2 or not value.numel():
        return None
    if not value.is_contiguous():
        if not build.target.packs_product(stored.dtype, stored.numel()):
            return None
        x = build.call(_aten.clone.default, x, memory_format=torch.contiguous_format)  # as the kernel would
    if packed_op(build.target, _aten.linear.default, (x, weight)) is not None:  # it stays whole
        return None if value.is_contiguous() else build.call(_aten.linear.default, x, weight, bias)
    *lead, width = value.shape
    flat = x if len(lead) == 1 else build.call(_aten.view.default, x, [math.prod(lead), width])
    transposed = build.call(_aten.t.default, weight)
    if bias is None:
        product = build.call(_aten.mm.default, flat, transposed)
    else:
        product = build.call(_aten.addmm.default, bias, flat, transposed)
    if len(lead) == 1:
        return product
    return build.call(_aten.view.default, product, [*lead, weight.meta["val"].shape[0]])


def _convolution(build: GraphBuilder, x: Node, weight: Node, bias: Node | None, *rest: Argument) -> Node | None:
    """Of an image in channels-last whose sizes torch's kernels for that layout are wrong for: of a copy of it, with the
    result copied to channels-last."""
    value = x.meta["val"]
    if build.target.kind != "cpu" or value.dim() != 4 or value.stride() != dense_strides(value.shape):
        return None
    if shape_of(value.shape, weight.meta["val"].shape, rest, torch.float32) is not None:
        return None
    image = build.call(_aten.clone.default, x, memory_format=torch.contiguous_format)
    result = build.call(_aten.convolution.default, image, weight, bias, *rest)
    return build.call(_aten.clone.default, result, memory_format=torch.channels_last)


def _embedding(build: GraphBuilder, weight: Node, indices: Node, *_: object, **__: object) -> Node | None:
    """`weight[indices]` as a selection of rows; what else an embedding takes concerns training only."""
    value = indices.meta["val"]
    if value.dtype not in (torch.int32, torch.int64):
        return None
    if not value.is_contiguous():  # as the kernel flattens them
        indices = build.call(_aten.clone.default, indices, memory_format=torch.contiguous_format)
    flat = indices if value.dim() == 1 else build.call(_aten.view.default, indices, [value.numel()])
    rows = build.call(_aten.index_select.default, weight, 0, flat)
    if value.dim() == 1:
        return rows
    return build.call(_aten.view.default, rows, [*value.shape, weight.meta["val"].shape[1]])


def _arange(build: GraphBuilder, *bounds: Argument, **options: Argument) -> Node:
    """All spellings of arange as the one that has an out variant."""
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
    return build.call(_aten.arange.start_step, start, end, step, **options)


def _scatter(view: torch._ops.OpOverload) -> Callable[..., Node]:
    """A scatter into a view as a copy of the whole, and a copy into the view of that."""

    def lower(build: GraphBuilder, whole: Node, source: Node, *where: Argument, **options: Argument) -> Node:
        copied = build.call(_aten.clone.default, whole)
        build.call(_aten.copy_.default, build.call(view, copied, *where, **options), source)
        return copied

    return lower


def _as_strided_scatter(
    build: GraphBuilder, whole: Node, source: Node, *where: Argument, **options: Argument
) -> Node | None:
    """Its places are those of the storage: a copy has the same ones where the whole is all of it, in order."""
    value = whole.meta["val"]
    if not value.is_contiguous() or value.storage_offset():
        return None
    return _scatter(_aten.as_strided.default)(build, whole, source, *where, **options)


LOWERINGS: dict[Target, Lowering] = {
    _aten.as_strided_scatter.default: _as_strided_scatter,
    _aten.slice_scatter.default: _scatter(_aten.slice.Tensor),
    _aten.select_scatter.default: _scatter(_aten.select.int),
    _aten.diagonal_scatter.default: _scatter(_aten.diagonal.default),
    _aten.linear.default: _linear,
    _aten.convolution.default: _convolution,
    _aten.embedding.default: _embedding,
    _aten.arange.default: _arange,
    _aten.arange.start: _arange,
}
