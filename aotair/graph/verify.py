"""What a legal graph is. Runs between all stages; a stage gets a legal graph and must leave one."""

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import Node

from ..errors import InternalError, UnsupportedError
from .show import target_name
from .user_line import source


def check_graph(module: torch.fx.GraphModule, after: str) -> None:
    """Raises InternalError where the graph that the stage `after` left is not legal.

    Legal: nodes in topological order, placeholders first, one output that is a flat tuple of tensors; every other
    node calls an op overload, `getitem`, or a function of sizes; every node that returns something carries it, with
    fake tensors, in `meta["val"]`.
    """
    try:
        module.graph.lint()
    except Exception as error:
        raise InternalError(f"{after} left a broken graph: {error}") from error
    placeholders_over = False
    for node in module.graph.nodes:
        if node.op == "placeholder":
            _require(not placeholders_over, node, after, "placeholders come first")
        else:
            placeholders_over = True
        _verify_node(node, after)


def _verify_node(node: Node, after: str) -> None:
    if node.op == "output":
        given = node.args[0] if isinstance(node.args[0], (tuple, list)) else (None,)
        results = [arg for arg in given if isinstance(arg, Node)]
        _require(len(results) == len(given), node, after, "the output is a flat tuple of nodes")
        for arg in results:
            _require(isinstance(arg.meta.get("val"), torch.Tensor), arg, after, "outputs are tensors")
        return
    _require(node.op in ("placeholder", "call_function"), node, after, f"no {node.op} nodes")
    returns_nothing = isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns
    _require("val" in node.meta or returns_nothing, node, after, "every node carries meta['val']")
    if node.op == "call_function":
        _require(is_legal_target(node.target), node, after, "calls are of op overloads, getitem or size functions")


def is_legal_target(target: object) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return True
    module = getattr(target, "__module__", None)
    return module in ("_operator", "math", "torch") and callable(target)


def refuse_unsupported(module: torch.fx.GraphModule, where: str) -> None:
    """Raises UnsupportedError, with the user's source line, for what no artifact can hold."""
    for node in module.graph.nodes:
        if node.op == "get_attr" or isinstance(node.target, torch._ops.HigherOrderOperator):
            raise UnsupportedError(
                f"the graph holds {target_name(node)}, a call of a subgraph{source(node)}",
                where=where,
                fix="write the model without torch.cond, while_loop or autocast regions",
            )
        if free_unbacked_symbols(node.meta.get("val")):
            raise UnsupportedError(
                f"a shape depends on the values of a tensor: {target_name(node)}{source(node)}",
                where=where,
                expected="shapes that follow from the shapes of the inputs",
                fix="replace nonzero(), boolean indexing and .item() by torch.where and masks",
            )
        if _draws_random_numbers(node):
            raise UnsupportedError(
                f"the model draws random numbers: {target_name(node)}{source(node)}",
                where=where,
                fix="call eval() in the factory, or pass the random tensor as an input",
            )


def _draws_random_numbers(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    arguments = node.target._schema.arguments
    given = {argument.name: argument.default_value for argument in arguments}
    given |= dict(zip((argument.name for argument in arguments), node.args)) | dict(node.kwargs)
    # Attention draws only where it drops, and a recurrent layer only where it is trained.
    return bool(given.get("dropout_p", True)) and bool(given.get("train", True))


def _require(truth: bool, node: Node, after: str, rule: str) -> None:
    if not truth:
        raise InternalError(f"{after} left an illegal graph at {node.name} ({target_name(node)}): {rule}{source(node)}")
