"""One bucket: the symbolic graph with concrete sizes put in, and composites lowered to kernels with out variants."""

import operator
from collections.abc import Mapping

import torch
from torch.fx.node import Argument, Node, map_arg
from torch.utils import _pytree

from aotair_runtime.confine.op_table import NAMESPACES
from aotair_runtime.devices import int8_rows

from ..errors import UnsupportedError
from ..graph.derived import is_constant, is_fixed, mark_constant, mark_fixed
from ..graph.fake import storage_of, tensors_of
from ..graph.operand import operands
from ..graph.origin import SPECIALISE, copied, made_by
from ..graph.user_line import source
from ..ops import experts, int4, row_products, rows
from ..target.out_variants import out_variant
from ..target.target import HOST, Target
from .bodies import NoBody, body, kernel_calls
from .graph_builder import GraphBuilder
from .lowerings import COPIES, FILLS, LOWERINGS, UNINITIALISED
from .packed import packed_op

# What never runs as itself: it is lowered, or becomes a copy, a fill or nothing.
# Every device copies, by a kernel that torch keeps for all of them.
# Convolutions are lowered to convolutions, which a device may not have.
_ALWAYS = frozenset({*LOWERINGS, *COPIES, *FILLS, *UNINITIALISED, torch.ops.aten.copy_.default}) - {
    torch.ops.aten.convolution.default
}


_TAKEN_APART = experts.TAKEN_APART | rows.TAKEN_APART | row_products.TAKEN_APART  # before any node sees them

# What gives a number that the host has to know: a capture cannot wait for it.
_READS = {torch.Tag.data_dependent_output}

Given = tuple[tuple[Argument, ...], Mapping[str, Argument]]  # the arguments of a call, by position and by name


def specialise(
    module: torch.fx.GraphModule, shapes: Mapping[str, tuple[int, ...]], where: str, target: Target = HOST
) -> torch.fx.GraphModule:
    """A copy of `module` for inputs of the given concrete shapes, by placeholder name; inputs are contiguous.

    Sizes become ints, so no size arithmetic is left; outputs that are constants themselves are copied, so that no
    caller gets hold of a weight; ops that `target` does not run become those that they are made of. Raises
    UnsupportedError where an op refuses the sizes, or is made of nothing that nodes have.
    """
    build = GraphBuilder(target)
    env: dict[Node, Argument] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            env[node] = _placeholder(build, node, shapes)
        elif node.op == "output":
            build.stream = 0
            made = build.graph.output(tuple(_owned(build, value) for value in map_arg(operands(node), env.__getitem__)))
            made.meta |= {key: node.meta[key] for key in ("streams", "priorities") if key in node.meta}
        else:
            env[node] = _call(build, node, env, where, target)
    return torch.fx.GraphModule({}, build.graph)


def _placeholder(build: GraphBuilder, node: Node, shapes: Mapping[str, tuple[int, ...]]) -> Node:
    value = node.meta["val"]
    if node.name in shapes:
        shape = tuple(shapes[node.name])
        strides = torch.empty(shape, device="meta").stride()
        made = build.placeholder(node.name, shape, strides, value.dtype)
    else:
        made = build.placeholder(node.name, tuple(value.shape), value.contiguous().stride(), value.dtype)
        (mark_fixed if is_fixed(node) else mark_constant)(made)
    return made


def _call(build: GraphBuilder, node: Node, env: Mapping[Node, Argument], where: str, target: Target) -> Argument:
    args, kwargs = map_arg((node.args, dict(node.kwargs)), env.__getitem__)
    build.origin, build.stream = copied(node), node.meta.get("stream", 0)
    if "event" in node.meta:
        return build.event(node)
    if not _takes(build, node.target, (args, kwargs), target):
        return _expanded(build, node, (args, kwargs), where, target)
    if node.target is operator.getitem and isinstance(args[0], (tuple, list)) and isinstance(args[1], (int, slice)):
        return args[0][args[1]]  # one of several results of an op that was expanded
    return _made(build, node, (args, kwargs), where)


def _takes(build: GraphBuilder, op: object, given: Given, target: Target) -> bool:
    """Whether a node runs a call as it is: of an op with a kernel, or of one that calls ops that it runs."""
    if not isinstance(op, torch._ops.OpOverload):
        return True
    if op is int4.OP:
        return packed_op(target, op, given[0]) is not None
    if op is int8_rows.OP:
        x = given[0][0]
        return isinstance(x, Node) and bool(x.meta["val"].shape[0] <= int8_rows.MOST_ROWS)
    if op in _TAKEN_APART:
        return False
    if op in _ALWAYS or (_is_view(op) and op.namespace in target.allowed.known):
        return True
    if not target.is_host and _READS & set(op.tags):
        return False
    if out_variant(op, target) is not None:
        return True
    if not target.names(op) or target.is_host:
        return target.names(op)
    if target.has_kernel(op) or op.namespace == target.kind:
        return True
    if target.composed(op) and op not in build.composed:
        build.composed[op] = False  # where it calls itself
        build.composed[op] = _composed(build, op, given, target)
    return build.composed.get(op, False)


def _composed(build: GraphBuilder, op: torch._ops.OpOverload, given: Given, target: Target) -> bool:
    try:
        args, kwargs = map_arg(given, _value)
        calls = kernel_calls(build.mode, op, args, kwargs)
    except NoBody:
        return False
    return all(_takes(build, call.op, (call.args, call.kwargs), target) for call in calls)


def _is_view(op: torch._ops.OpOverload) -> bool:
    """Whether a call computes nothing: its results are views of its arguments."""
    results = op._schema.returns
    return bool(results) and not op._schema.is_mutable and all(r.alias_info is not None for r in results)


def _value(node: Node) -> Argument:
    value: Argument = node.meta["val"]
    return value


def _expanded(build: GraphBuilder, node: Node, given: Given, where: str, target: Target) -> Argument:
    """The calls of an op's body instead of the op."""
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)  # anything else is called as it is
    args, kwargs = map_arg(given, _value)
    try:
        inner = body(build.mode, op, args, kwargs, target)
    except NoBody as reason:
        raise _lacking(node, op, where, target, reason) from reason
    tensors = (leaf for leaf in _pytree.tree_leaves(given) if isinstance(leaf, Node))
    env: dict[Node, Argument] = dict(zip(inner.graph.find_nodes(op="placeholder"), tensors, strict=True))
    for call in inner.graph.nodes:
        if call.op == "output":
            results: Argument = map_arg(call.args[0], env.__getitem__)
            return results
        if call.op == "call_function":
            call.meta |= {key: node.meta[key] for key in ("stream",) if key in node.meta}
            call.meta |= made_by(copied(node), SPECIALISE)
            env[call] = _call(build, call, env, where, target)
    raise AssertionError("a graph ends with its output")


def _lacking(node: Node, op: torch._ops.OpOverload, where: str, target: Target, reason: NoBody) -> UnsupportedError:
    if target.names(op):
        return UnsupportedError(
            f"the op {op} has no kernel on {target.kind}{source(node)}",
            where=where,
            got=f"not made of others: {reason}",
            fix="write it with other ops: it would run on the host, which a capture cannot record",
        )
    if op.namespace in NAMESPACES:
        return UnsupportedError(
            f"the op {op.name()} is none that a node lets programs call{source(node)}",
            where=where,
            got=f"a kernel that cannot be taken apart: {reason}",
            fix=f"write it with other ops; or set target.allow_ops: [{op.name()}] (--allow-op {op.name()}), and load "
            "with allow_ops too: you vouch that its kernel stays within its tensors, whatever it is called with",
        )
    return UnsupportedError(
        f"the op {op.name()} is none that a node has{source(node)}",
        where=where,
        expected=f"ops of the namespaces {', '.join(target.allowed.known)}, or made of them",
        got=f"a kernel that cannot be taken apart: {reason}",
        fix=f"write it with torch's ops; or set target.allow_namespaces: [{op.namespace}] (--allow-namespace "
        f"{op.namespace}), and import the package that defines it on every node",
    )


def _made(build: GraphBuilder, node: Node, given: Given, where: str) -> Argument:
    (args, kwargs), target = given, node.target
    assert not isinstance(target, str)  # methods became ops
    try:
        if not _gives_tensors(node):
            size: Argument = build.evaluate(target, args, kwargs)
            return size
        lowering = LOWERINGS.get(target)
        made = lowering(build, *args, **kwargs) if lowering else None
        return made or build.append(target, args, kwargs, node.name)
    except Exception as error:
        raise UnsupportedError(
            f"the op {target} refuses these sizes{source(node)}",
            where=where,
            got=f"{type(error).__name__}: {error}",
            fix="leave out the bucket",
        ) from error


def _gives_tensors(node: Node) -> bool:
    return any(True for _ in tensors_of(node.meta.get("val"))) or _is_mutable(node)


def _is_mutable(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _owned(build: GraphBuilder, node: Node) -> Node:
    storages = {storage_of(p.meta["val"]) for p in build.graph.nodes if is_constant(p)}
    return build.call(torch.ops.aten.clone.default, node) if storage_of(node.meta["val"]) in storages else node
