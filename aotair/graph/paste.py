"""The calls of a traced graph in the place of a node."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.node import Node, map_arg

from .fake import fake_mode, fake_result


def as_function(node: Node, target: Callable[..., object]) -> tuple[Callable[..., object], list[Node]]:
    """A function of the node's inputs that calls `target` with the node's arguments, and these inputs in order."""
    given = list(dict.fromkeys(node.all_input_nodes))

    def run(*values: object) -> object:
        by_node: dict[Node, Any] = dict(zip(given, values))
        arguments: Any = map_arg((node.args, dict(node.kwargs)), by_node.__getitem__)
        args, kwargs = arguments
        return target(*args, **kwargs)

    return run, given


def paste(body: torch.fx.GraphModule, node: Node, given: Sequence[Node]) -> tuple[list[Node], object]:
    """Copy the calls of `body`, whose placeholders stand for `given`, before `node`; gives them in order, and what
    stands for the result of `body`. Each has the node's meta, and a result of its own."""
    graph, mode, made = node.graph, fake_mode(node.graph), []
    inside = dict(zip(body.graph.find_nodes(op="placeholder"), given, strict=True))
    with graph.inserting_before(node):
        for inner in body.graph.nodes:
            if inner.op == "call_function":
                copied = inside[inner] = graph.node_copy(inner, inside.__getitem__)
                copied.meta = {key: value for key, value in node.meta.items() if key != "val"}
                copied.meta["val"] = fake_result(mode, copied.target, copied.args, dict(copied.kwargs))
                made.append(copied)
    return made, map_arg(body.graph.output_node().args[0], inside.__getitem__)
