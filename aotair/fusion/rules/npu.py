"""What several rules for npu ops have in common."""

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import Node

from ...ops import npu as _defined  # noqa: F401 (the ops that patterns name)
from ..matcher import Either, KeywordArg, call
from ..rule import Declined

HALVES = (torch.float16, torch.bfloat16)


def val(node: object) -> torch.Tensor:
    """The fake tensor that a node returns; raises Declined for a number or a size."""
    value = node.meta["val"] if isinstance(node, Node) else node
    if not isinstance(value, torch.Tensor):
        raise Declined(f"{node} is not a tensor")
    return value


def same(one: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    """Whether two sizes are equal in every bucket."""
    return statically_known_true(one == other)


def dtype_text(node: Node) -> str:
    return str(val(node).dtype).removeprefix("torch.")


def not_halves(*nodes: Node) -> str | None:
    """The fused kernels take float16 and bfloat16, all arguments alike."""
    for node in nodes:
        if val(node).dtype not in HALVES:
            return f"{node.name} is {dtype_text(node)}, the fused kernel takes float16 and bfloat16"
        if val(node).dtype != val(nodes[0]).dtype:
            return f"{node.name} is {dtype_text(node)} and {nodes[0].name} is {dtype_text(nodes[0])}"
    return None


def not_alike(x1: Node, x2: Node) -> str | None:
    """The added norms take two tensors of one shape: they do not broadcast."""
    one, other = val(x1), val(x2)
    if one.dim() != other.dim() or not all(map(same, one.shape, other.shape)):
        return f"{x1.name} and {x2.name} have different shapes: {list(one.shape)} and {list(other.shape)}"
    return None


def symbolic_width(node: Node) -> str | None:
    """The kernels are chosen by the last dimension: it has to be a number."""
    if not isinstance(val(node).shape[-1], int):
        return f"the last dimension of {node.name} is symbolic"
    return None


def added_norm_refuses(x1: Node, x2: Node, gamma: Node) -> str | None:
    """What the ops that fuse something with npu_add_rms_norm ask of its arguments."""
    if val(gamma).dim() != 1:
        return f"{gamma.name} has {val(gamma).dim()} dimensions, the fused kernel norms the last one only"
    return not_halves(x1, x2, gamma) or not_alike(x1, x2) or symbolic_width(x1)


_ARGUMENTS = tuple(map(KeywordArg, ("x1", "x2", "gamma")))
# npu_add_rms_norm, with or without an epsilon.
ADDED_NORM = Either(
    call(torch.ops.npu.npu_add_rms_norm.default, *_ARGUMENTS, KeywordArg("epsilon")),
    call(torch.ops.npu.npu_add_rms_norm.default, *_ARGUMENTS),
)
