"""A user's own pass, `f(gm, example_inputs, config) -> None`: called, checked, and its new nodes' shapes worked out."""

import operator
from collections.abc import Callable

import torch
from torch.fx.node import Node

from ..errors import GraphError
from ..graph.fake import CannotEvaluate, recompute
from ..graph.inplace import same_layout
from ..graph.verify import is_legal_target, source
from ..ops import air
from .edits import Edits

air.define()


def run(module: torch.fx.GraphModule, edits: Edits, function: Callable) -> None:
    """Raises GraphError, naming the pass, where it raises or leaves a graph that is none."""
    name = f"{edits.name} ({getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', function)})"
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    promised = [node.meta["val"] for node in module.graph.output_node().args[0]]
    nodes = set(module.graph.nodes)
    try:
        function(module, [node.meta["val"] for node in placeholders], edits.config)
    except Exception as error:
        raise GraphError(f"the pass {name} raised {type(error).__name__}: {error}") from error
    _check(module, name, placeholders)
    try:
        recompute(module.graph)
    except CannotEvaluate as error:
        raise GraphError(
            f"the pass {name} left a call that cannot be made: {error.node.name}{source(error.node)}", got=str(error)
        ) from error
    _check_results(module, name)
    returned = module.graph.output_node().args[0]
    if len(returned) != len(promised):
        raise GraphError(
            f"the pass {name} changed the number of outputs", expected=str(len(promised)), got=str(len(returned))
        )
    for position, (node, before) in enumerate(zip(returned, promised)):
        after = node.meta["val"]
        if not same_layout(after, before) and (after.dtype != before.dtype or after.shape != before.shape):
            raise GraphError(f"the pass {name} changed the output {position}", expected=_text(before), got=_text(after))
    for node in set(module.graph.nodes) ^ nodes:
        edits.may(node, "added or removed")


def _check(module: torch.fx.GraphModule, name: str, placeholders: list[Node]) -> None:
    try:
        module.graph.lint()
    except Exception as error:
        raise GraphError(f"the pass {name} left a broken graph", got=str(error).splitlines()[0]) from error
    if [node for node in module.graph.nodes if node.op == "placeholder"] != placeholders:
        raise GraphError(f"the pass {name} added or removed inputs", expected=f"{len(placeholders)} placeholders")
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "call_function", "output"):
            raise GraphError(f"the pass {name} left a {node.op} node: {node.name}", expected="calls of op overloads")
        if isinstance(node.target, torch._ops.OpOverloadPacket):
            raise GraphError(
                f"the pass {name} calls {node.target} without an overload at {node.name}",
                fix=f"write {' or '.join(_overloads(node.target))}",
            )
        if node.op == "call_function" and not is_legal_target(node.target):
            raise _no_overload(node, name)
    output = module.graph.output_node()
    if not isinstance(output.args[0], (tuple, list)) or not all(isinstance(arg, Node) for arg in output.args[0]):
        raise GraphError(f"the pass {name} left an output that is no flat tuple of nodes")


def _check_results(module: torch.fx.GraphModule, name: str) -> None:
    """Functions of torch and Python are for sizes: what gives tensors is a call of an op."""
    for node in module.graph.nodes:
        value = node.meta.get("val") if node.op == "call_function" else None
        values = value if isinstance(value, (tuple, list)) else (value,)
        plain = isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem
        if not plain and any(isinstance(item, torch.Tensor) for item in values):
            raise _no_overload(node, name)


def _no_overload(node: Node, name: str) -> GraphError:
    called = getattr(node.target, "__name__", str(node.target))
    found = _overloads(getattr(torch.ops.aten, called, None))
    return GraphError(
        f"the pass {name} calls {called} at {node.name}{source(node)}", expected="overloads of ops",
        got=f"{getattr(node.target, '__module__', '')}.{called}".strip("."),
        fix=f"write {' or '.join(found)}" if found else "write the ops that it calls, as torch.ops.aten.relu.default",
    )  # fmt: skip


def _overloads(packet: torch._ops.OpOverloadPacket | None) -> list[str]:
    """How the overloads of an op are written, but for those that write into an argument."""
    names = [] if packet is None else packet.overloads()
    return [f"torch.ops.{packet}.{name}" for name in names if not getattr(packet, name)._schema.is_mutable][:4]


def _text(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
