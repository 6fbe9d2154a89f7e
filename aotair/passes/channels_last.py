"""Convolutions of images read and write channels-last, the layout that the CPU's kernels are fastest in; those of
sequences, as images of one row, too.

The layout is chosen once: where an image comes as it is given, it is copied; what maps images number by number, pools,
norms or joins them keeps the layout, so that the next convolution finds it there; a view that it does not allow looks
at a copy, and results of the model that were contiguous are so again. Which weights a node packs is decided later, call
by call.

Left alone: transposed convolutions, those of groups of a single channel that are not depthwise, those whose weights are
no constants of the checkpoint or made of such, and graphs that see a tensor by its strides.
"""

from typing import cast

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.fx.node import Node

from aotair_runtime.confine.op_table import demands
from aotair_runtime.devices.onednn_convolution import dense_strides, is_of_single_channels

from ..graph.fake import copy_first, fake_mode, fake_result, relay
from ..graph.operand import operands
from .edits import Edits
from .fold_constants import constant_nodes

_aten = torch.ops.aten
_CONVOLUTION, _DENSE = _aten.convolution.default, torch.channels_last


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    graph, target = module.graph, edits.target
    constants, chosen = constant_nodes(graph), set[Node]()
    if any(graph.find_nodes(op="call_function", target=_aten.as_strided.default)):
        edits.skipped("a tensor is seen by its strides (as_strided), which would be others")
        return
    for node in list(graph.find_nodes(op="call_function", target=_CONVOLUTION)):
        if not target.packs_convolution(node.meta["val"].dtype):
            edits.skipped(f"convolutions of {node.meta['val'].dtype} are not packed on {target.kind}")
            return
        if why := _why_not(node, constants):
            edits.declined(node, why)
        elif edits.may(node, "in channels-last"):
            chosen.add(node if node.meta["val"].dim() == 4 else _as_images(node))
    if chosen:
        (output,) = graph.find_nodes(op="output")
        before = {node: node.meta["val"] for node in operands(output) if isinstance(node, Node)}
        relay(graph, lambda node: _reads_dense(node) if node in chosen else _reads_rows(node))
        _as_before(output, before)


def _why_not(node: Node, constants: set[Node]) -> str:
    """Why a convolution stays as it is; empty where it is one of images with a weight that a node may pack."""
    weight, transposed = node.args[1], node.args[6]
    if node.meta["val"].dim() not in (3, 4):
        return "it is no convolution of images or sequences"
    if transposed:
        return "it is transposed"
    assert isinstance(weight, Node)
    if is_of_single_channels(weight.meta["val"].shape, cast(int, node.args[8])):
        return "each group reads a single channel"
    return "" if weight in constants else "its weight is no constant"


def _as_images(node: Node) -> Node:
    """The convolution of images of one row that a convolution of sequences is, in its place."""
    x, weight, bias, *steps, transposed, _, groups = node.args
    stride, padding, dilation = ([fill, *cast(list[int], size)] for fill, size in zip((1, 0, 1), steps))
    with node.graph.inserting_before(node):
        rows = [node.graph.call_function(_aten.unsqueeze.default, (one, 2)) for one in (x, weight)]
        given = (*rows, bias, stride, padding, dilation, transposed, [0, 0], groups)
        wide = node.graph.call_function(_CONVOLUTION, given)
        narrow = node.graph.call_function(_aten.squeeze.dim, (wide, 2))
    for made in (*rows, wide, narrow):
        _take_after(made, node)
    node.replace_all_uses_with(narrow)
    node.graph.erase_node(node)
    return wide


def _reads_dense(node: Node) -> None:
    """Let a convolution read its image in channels-last."""
    x = node.args[0]
    assert isinstance(x, Node)
    if _is_dense(x.meta["val"]):
        return
    with node.graph.inserting_before(node):
        copied = node.graph.call_function(_aten.clone.default, (x,), {"memory_format": _DENSE})
    _take_after(copied, node)
    node.args = (copied, *node.args[1:])


def _reads_rows(node: Node) -> None:
    """Let an op whose results have to lie row by row, or column by column, read an image row by row."""
    if not isinstance(node.target, torch._ops.OpOverload) or "dense" not in demands(node.target.name()).tensors:
        return
    for place, x in enumerate(node.args):
        value = x.meta.get("val") if isinstance(x, Node) else None
        if isinstance(value, torch.Tensor) and not value.is_contiguous():
            copy_first(node, place)


def _is_dense(image: torch.Tensor) -> bool:
    """Whether an image lies in channels-last by its strides. One of a single channel, or of one row and column, is
    contiguous in either layout, and the op goes by its strides for its result's."""
    return statically_known_true(sym_eq(tuple(image.stride()), dense_strides(image.shape)))


def _as_before(output: Node, before: dict[Node, torch.Tensor]) -> None:
    """Let the model's results be contiguous where they were."""
    for node, value in before.items():
        if not value.is_contiguous() or node.meta["val"].is_contiguous():
            continue
        with output.graph.inserting_before(output):
            copied = output.graph.call_function(
                _aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
            )
        _take_after(copied, node)
        output.replace_input_with(node, copied)


def _take_after(copied: Node, like: Node) -> None:
    copied.meta = {key: value for key, value in like.meta.items() if key != "val"}
    copied.meta["val"] = fake_result(fake_mode(copied.graph), copied.target, copied.args, dict(copied.kwargs))
