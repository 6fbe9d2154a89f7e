"""Write each call in one way, as torch's tracing does: what equals a default is left out, what can stand by position
does. A pass of a user's own may have written it otherwise, and patterns compare arguments."""

import torch
from torch.fx.node import Argument, Node

from ..graph.operand import operand
from .edits import Edits


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    for node in module.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            args, kwargs = _canonical(node, node.target)
            if (args, kwargs) != (node.args, node.kwargs) and edits.may(node, "written in the usual way"):
                node.args, node.kwargs = args, kwargs


def _canonical(node: Node, op: torch._ops.OpOverload) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
    arguments = op._schema.arguments
    given = {argument.name: value for argument, value in zip(arguments, node.args)} | dict(node.kwargs)
    if op is torch.ops.aten._to_copy.default:
        for name in ("device", "layout"):  # x.type_as(y) names them, x.to(dtype) does not
            if given.get(name) == getattr(operand(node).meta["val"], name):
                del given[name]
    spoken = [a for a in arguments if a.name in given and not (a.has_default_value() and _same(given[a.name], a))]
    places = [a for a in arguments if not a.kwarg_only]
    last = max((places.index(a) for a in spoken if not a.kwarg_only), default=-1)
    args = tuple(given.get(a.name, a.default_value) for a in places[: last + 1])
    kwargs = {a.name: given[a.name] for a in spoken if a.kwarg_only}
    return args, kwargs


def _same(value: object, argument: torch._C.Argument) -> bool:
    default = argument.default_value
    return not isinstance(value, Node) and type(value) is type(default) and value == default
