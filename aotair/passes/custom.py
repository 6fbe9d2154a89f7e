"""A user's own pass, `f(gm, example_inputs, config) -> None`: shown the form that it is written for, called, checked,
and its new nodes' shapes worked out."""

import functools
import logging
from collections.abc import Callable

import torch
from torch.fx.node import Node

from ..errors import GraphError
from ..graph.fake import copy_first, fake_mode, fake_result
from ..graph.inplace import same_layout
from ..graph.operand import operands
from ..ops import air
from ..recipe.config import CompilerConfig
from . import calls, composites, spoken
from .edits import Edits

air.define()
log = logging.getLogger("aotair")
_aten = torch.ops.aten
_WHOLE = (
    "it sees composites apart, as TorchAir shows them; config.experimental_config.composites: whole shows them whole"
)
UsersPass = Callable[[torch.fx.GraphModule, list[torch.Tensor], CompilerConfig], object]


def run(
    module: torch.fx.GraphModule,
    edits: Edits,
    *,
    function: UsersPass,
    config: CompilerConfig,
    form: str = "auto",
    reshapes: bool = False,
) -> None:
    """The pass gets `config`, and sees composites apart, as in TorchAir, and with `reshapes` each view as a reshape.
    One that names composites, and changes nothing then, sees them whole. `form` (the option `composites`) is "auto" for
    this, and "apart" or "whole" for one of both.

    Raises GraphError, naming the pass, where it raises or leaves a graph that is none.
    """
    name = f"{edits.name} ({getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', function)})"
    graph = module.graph
    call = functools.partial(_call, module, edits, function, config, name)
    if form == "whole":
        call()
        return
    there = {node.target for node in graph.nodes} & composites.TAKEN_APART
    named = sorted(str(op) for op in spoken.ops_named(function) & there)
    groups = composites.expand(graph)
    if reshapes:
        for node in graph.find_nodes(op="call_function", target=_aten.view.default):
            node.target = _aten.reshape.default
    before = _calls(graph)
    call(hint=_WHOLE if named else "")
    changed = _calls(graph) != before
    _as_views(graph)
    composites.fold(graph, groups)
    if named and not changed and form == "auto":
        call()
    elif named and form == "auto":
        log.warning(
            "%s: it names %s, which it was not shown, since it changed other calls: %s", name, ", ".join(named), _WHOLE
        )


def _calls(graph: torch.fx.Graph) -> list[composites.Call]:
    return [(node, node.target, node.args, node.kwargs) for node in graph.nodes]


def _call(
    module: torch.fx.GraphModule,
    edits: Edits,
    function: UsersPass,
    config: CompilerConfig,
    name: str,
    hint: str = "",
) -> None:
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    promised = [node.meta["val"] for node in operands(module.graph.output_node())]
    nodes = dict.fromkeys(module.graph.nodes)
    module.recompile()  # it may look at the code
    try:
        function(module, [node.meta["val"] for node in placeholders], config)
    except Exception as error:
        raise GraphError(f"the pass {name} raised {type(error).__name__}: {error}", fix=hint) from error
    _check(module, name, placeholders)
    calls.by_position(module.graph)
    air.in_plain_words(module.graph)
    calls.resolve_calls(module.graph, name)
    returned = operands(module.graph.output_node())
    if len(returned) != len(promised):
        raise GraphError(
            f"the pass {name} changed the number of outputs", expected=str(len(promised)), got=str(len(returned))
        )
    for position, (node, before) in enumerate(zip(returned, promised)):
        after = node.meta["val"]
        if not same_layout(after, before) and (after.dtype != before.dtype or after.shape != before.shape):
            raise GraphError(f"the pass {name} changed the output {position}", expected=_text(before), got=_text(after))
    there = dict.fromkeys(module.graph.nodes)
    for node in [node for node in nodes if node not in there] + [node for node in there if node not in nodes]:
        edits.may(node, "added or removed")


def _check(module: torch.fx.GraphModule, name: str, placeholders: list[Node]) -> None:
    try:
        module.graph.lint()
    except Exception as error:
        raise GraphError(f"the pass {name} left a broken graph", got=str(error).splitlines()[0]) from error
    if [node for node in module.graph.nodes if node.op == "placeholder"] != placeholders:
        raise GraphError(f"the pass {name} added or removed inputs", expected=f"{len(placeholders)} placeholders")
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "call_function", "call_method", "output"):
            raise GraphError(f"the pass {name} left a {node.op} node: {node.name}", expected="calls of op overloads")
    output = module.graph.output_node()
    if not isinstance(output.args[0], (tuple, list)) or not all(isinstance(arg, Node) for arg in output.args[0]):
        raise GraphError(f"the pass {name} left an output that is no flat tuple of nodes")


def _as_views(graph: torch.fx.Graph) -> None:
    """Each reshape as a view: of a copy, where it is one."""
    for node in graph.find_nodes(op="call_function", target=_aten.reshape.default):
        node.target = _aten.view.default
        try:
            node.meta["val"] = fake_result(fake_mode(graph), node.target, node.args, dict(node.kwargs))
        except (RuntimeError, ValueError):  # the strides do not allow it
            copy_first(node)
            node.meta["val"] = fake_result(fake_mode(graph), node.target, node.args, dict(node.kwargs))


def _text(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
