"""Functions and methods that a user's pass calls, as torch.fx lets it, become the ops that they call."""

import operator
from collections.abc import Callable, Sequence

import torch
from torch.fx.node import Node

from ..errors import GraphError
from ..fusion.matcher import fwd_only
from ..graph.fake import CannotEvaluate, fake_mode, fake_result, quiet_torch
from ..graph.paste import as_function, paste
from ..graph.user_line import source
from ..graph.verify import is_legal_target


def by_position(graph: torch.fx.Graph) -> None:
    """Arguments that were given by name stand by position, as far as they can: passes look for them there."""
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or not node.kwargs:
            continue
        args, named = list(node.args), dict(node.kwargs)
        for argument in node.target._schema.arguments[len(args) :]:
            if argument.kwarg_only or argument.name not in named:
                break
            args.append(named.pop(argument.name))
        if len(args) > len(node.args):
            node.args, node.kwargs = tuple(args), named


def resolve_calls(graph: torch.fx.Graph, name: str) -> None:
    """Work out what each node returns, in order, with calls of functions, methods and ops without overloads traced.
    `name` says whose pass left the graph. Raises GraphError."""
    mode = fake_mode(graph)
    for node in list(graph.nodes):
        if node._erased or node.op in ("placeholder", "output") or "event" in node.meta:
            continue  # a function of several results takes the parts of these along
        if _is_function(node):
            _expand(node, name)
            continue
        try:
            node.meta["val"] = fake_result(mode, node.target, node.args, dict(node.kwargs))
        except Exception as error:
            raise GraphError(
                f"the pass {name} left a call that cannot be made: {node.name}{source(node)}",
                got=str(CannotEvaluate(node, error)),
            ) from error
        if node.target is operator.getitem:
            _count_from_the_front(node)


def _is_function(node: Node) -> bool:
    """Whether a call is of something else than an op, a part of several results, or a function of sizes."""
    if node.op == "call_method" or isinstance(node.target, torch._ops.OpOverloadPacket):
        return True
    if isinstance(node.target, torch._ops.OpOverload):
        return False
    tensors = [one for one in node.all_input_nodes if isinstance(one.meta["val"], torch.Tensor)]
    if node.target is operator.getitem:
        return node.args[0] in tensors
    return bool(tensors) or not is_legal_target(node.target)


def _count_from_the_front(part: Node) -> None:
    """The last of several results has a number like the others."""
    whole, number = part.args
    if isinstance(whole, Node) and isinstance(number, int) and number < 0:
        part.args = (whole, number + len(whole.meta["val"]))


def _expand(node: Node, name: str) -> None:
    body, given = _traced(node, name)
    _, results = paste(body, node, given)
    if isinstance(results, (tuple, list)):
        _hand_out(node, results, name)
    elif isinstance(results, Node):
        node.replace_all_uses_with(results)
    elif results is not None or node.users:
        raise _refused(node, name, f"it returns {results!r}")
    node.graph.erase_node(node)


def _hand_out(node: Node, results: Sequence[object], name: str) -> None:
    for user in list(node.users):
        place = user.args[1] if user.target is operator.getitem else None
        result = results[place] if isinstance(place, int) else None
        if not isinstance(result, Node):
            raise _refused(node, name, "its results are used as a whole")
        user.replace_all_uses_with(result)
        user.graph.erase_node(user)


def _traced(node: Node, name: str) -> tuple[torch.fx.GraphModule, list[Node]]:
    """The ops that the call makes, and the nodes that their placeholders stand for."""
    run, given = as_function(node, _method(node.target) if isinstance(node.target, str) else node.target)
    try:
        with quiet_torch():
            body = fwd_only(run, [one.meta["val"] for one in given], run_functional_passes=False)
    except Exception as error:
        text = str(error).strip().splitlines()
        raise _refused(node, name, f"{type(error).__name__}: {text[0] if text else ''}") from error
    if body.graph.find_nodes(op="get_attr"):
        raise _refused(node, name, "it holds a tensor of its own")
    body.graph.eliminate_dead_code()
    return body, given


def _method(name: str) -> Callable[..., object]:
    return lambda tensor, *args, **kwargs: getattr(tensor, name)(*args, **kwargs)


def _refused(node: Node, name: str, got: str) -> GraphError:
    called = getattr(node.target, "__name__", str(node.target))
    return GraphError(
        f"the pass {name} calls {called} at {node.name}{source(node)}, which cannot be traced to ops",
        expected="overloads of ops, or functions that call ops",
        got=got,
        fix="write the ops that it calls, as torch.ops.aten.relu.default",
    )
