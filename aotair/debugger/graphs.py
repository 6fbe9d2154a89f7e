"""A graph run call by call on the host, with what each call got and left."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import Node
from torch.utils import _pytree

from aotair_runtime.format.debug_data import Made

from ..export.exported import Exported
from ..graph.derived import Derivation, derivations
from ..graph.origin import line_of, module_of, passes_of
from ..graph.resolve import resolved
from ..graph.streams import launches
from ..ops import air
from .trail import Seen, Tensors, Trail, kept


def placeholder_values(
    graph: torch.fx.Graph, exported: Exported, inputs: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What each placeholder of a graph stands for: copies of the inputs and states, by the names that the model has for
    them; its constants, and those that are made of others."""
    values = {name: item.tensor for name, item in exported.constants.items()}
    values |= {name: states[item.name].clone() for name, item in exported.states.items()}
    values |= {placeholder: inputs[name].clone() for name, placeholder in exported.inputs.items()}
    made: dict[Derivation, list[torch.Tensor]] = {}
    for source in (graph, exported.module.graph):  # a bucket's graph has the names, the other what they stand for
        for node, derivation, result in derivations(source):
            if derivation not in made:
                made[derivation] = run_graph(derivation.graph, values)
            values[node.name] = made[derivation][result]
    return values


def run_graph(graph: torch.fx.Graph, values: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """What a graph returns for these values of its placeholders, which it may write into."""
    return _run(_Interpreter(graph), graph, values)


def observed(graph: torch.fx.Graph, values: Mapping[str, torch.Tensor]) -> tuple[list[torch.Tensor], Trail]:
    """The same, and what each call got and left."""
    observing = _Observing(graph)
    return _run(observing, graph, values), observing.trail


def _run(interpreter: "_Interpreter", graph: torch.fx.Graph, values: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    given = [values[node.name] for node in graph.find_nodes(op="placeholder")]
    with torch.no_grad():
        results = interpreter.run(*given)
    return [resolved(one) for one in _pytree.tree_leaves(results) if isinstance(one, torch.Tensor)]


class _Interpreter(torch.fx.Interpreter):
    """Runs a graph that has no module; what orders streams does nothing here."""

    def __init__(self, graph: torch.fx.Graph):
        super().__init__(torch.nn.Module(), graph=graph)

    def run_node(self, n: Node) -> Any:
        is_order = isinstance(n.target, torch._ops.OpOverload) and air.is_marker(n.target)
        return None if is_order else super().run_node(n)


class _Observing(_Interpreter):
    """Notes the calls that make the device work."""

    def __init__(self, graph: torch.fx.Graph):
        super().__init__(graph)
        self.trail: dict[str, Seen] = {}

    def run_node(self, n: Node) -> Any:
        if not launches(n):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        given = kept(_tensors((args, {k: v for k, v in kwargs.items() if k != "out"})))
        result = super().run_node(n)
        made = Made(line_of(n), module_of(n), passes_of(n))
        self.trail[n.name] = Seen(n.name, str(n.target), made, given, kept(_left(n, args, kwargs, result)))
        return result


def _left(node: Node, args: Sequence[object], kwargs: Mapping[str, object], result: object) -> Tensors:
    """The results of a call that are tensors of their own, then what it wrote into."""
    written = list(_written(node, args, kwargs))
    own = [one for one in _leaves(result) if not any(one is other for other in written)]
    return (*own, *written)


def _written(node: Node, args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[torch.Tensor]:
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    schema = node.target._schema
    given = dict(zip((argument.name for argument in schema.arguments), args)) | dict(kwargs)
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(given.get(argument.name))


def _leaves(result: object) -> list[torch.Tensor | None]:
    """The results in order; None for one that is no tensor."""
    if isinstance(result, torch.Tensor):
        return [result]
    return (
        [one if isinstance(one, torch.Tensor) else None for one in result] if isinstance(result, (tuple, list)) else []
    )


def _tensors(values: object) -> list[torch.Tensor]:
    return [one for one in _pytree.tree_leaves(values) if isinstance(one, torch.Tensor)]
