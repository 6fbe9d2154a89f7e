"""Which overload of an op works in place, and whether a tensor may be written where it lies."""

import functools

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.fx.node import Node

from .alias import base

_aten = torch.ops.aten
# In-place by name, but not by meaning: they change what a tensor refers to.
_METADATA = frozenset({"resize", "resize_as", "set", "rename", "requires_grad", "detach", "squeeze", "unsqueeze"})
# Views under which elements may share memory, whatever the strides say.
_OVERLAPPING = frozenset({_aten.unfold.default, _aten.expand.default})


@functools.cache
def inplace_overload(op: object) -> torch._ops.OpOverload | None:
    """The overload that writes what `op` returns into its first argument: `add_.Tensor` for `add.Tensor`."""
    if not isinstance(op, torch._ops.OpOverload):
        return None
    namespace, _, name = op._schema.name.partition("::")
    if name in _METADATA or op._schema.is_mutable or any(r.alias_info is not None for r in op._schema.returns):
        return None
    packet = getattr(getattr(torch.ops, namespace), name + "_", None)
    found = getattr(packet, op._overloadname, None) if packet is not None else None
    return found if isinstance(found, torch._ops.OpOverload) and _writes_first(found, op) else None


@functools.cache
def plain_overload(op: object) -> torch._ops.OpOverload | None:
    """The overload whose result is a tensor of its own: `add.Tensor` for `add_.Tensor`."""
    if not isinstance(op, torch._ops.OpOverload) or not op._schema.name.endswith("_"):
        return None
    namespace, _, name = op._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    found = getattr(packet, op._overloadname, None) if packet is not None else None
    return found if inplace_overload(found) is op else None


def _writes_first(found: torch._ops.OpOverload, op: torch._ops.OpOverload) -> bool:
    mine, theirs = found._schema, op._schema
    if [(a.name, str(a.type)) for a in mine.arguments] != [(a.name, str(a.type)) for a in theirs.arguments]:
        return False
    written = [a for a in mine.arguments if a.alias_info is not None and a.alias_info.is_write]
    returns = [r for r in mine.returns if r.alias_info is not None and r.alias_info.is_write]
    tensors = [str(a.type) == "Tensor" for a in mine.arguments[:1]] + [str(r.type) == "Tensor" for r in mine.returns]
    return written == mine.arguments[:1] and len(returns) == len(mine.returns) == 1 and all(tensors)


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two fake tensors are known to have the same dtype, shape and strides."""
    return (
        a.dtype == b.dtype
        and a.dim() == b.dim()
        and statically_known_true(sym_eq(a.shape, b.shape))
        and statically_known_true(sym_eq(a.stride(), b.stride()))
    )


def why_not_over(node: Node, target: Node) -> str:
    """Why the result of `node` cannot take the place of `target`, or nothing: it may be of another dtype, shape or
    layout, or several elements of `target` may be one."""
    result, value = node.meta["val"], target.meta["val"]
    if result.dtype != value.dtype:
        return f"its result is {result.dtype}, {target.name} is {value.dtype}"
    if result.dim() != value.dim() or not statically_known_true(sym_eq(result.shape, value.shape)):
        return f"its result has another shape than {target.name}"
    if not statically_known_true(sym_eq(result.stride(), value.stride())):
        return f"its result has other strides than {target.name}"
    if overlaps(target):
        return f"elements of {target.name} share memory"
    return ""


def is_reshape(node: Node) -> bool:
    """Whether an `as_strided` only restates the shape of a contiguous tensor, all of it."""
    source = node.args[0]
    assert isinstance(source, Node)
    value, whole = node.meta["val"], source.meta["val"]
    offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
    return (
        offset in (None, 0)
        and statically_known_true(value.numel() == whole.numel())
        and value.is_contiguous()
        and whole.is_contiguous()
    )


def overlaps(node: Node) -> bool:
    """Whether elements of the tensor may share memory."""
    value = node.meta["val"]
    if any(stride == 0 and size != 1 for size, stride in zip(value.shape, value.stride())):
        return True
    source: Node | None = node
    while source is not None:
        if source.target in _OVERLAPPING or (source.target is _aten.as_strided.default and not is_reshape(source)):
            return True
        source = base(source)
    return False
