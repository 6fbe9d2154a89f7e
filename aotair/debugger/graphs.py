"""A graph run call by call on the host, with what each call got and left."""

from collections.abc import Collection, Iterator, Mapping, Sequence
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
from ..lower.lowerings import UNINITIALISED
from ..ops import air
from .trail import Seen, Tensors, Trail, kept, overwrites


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


def observed(
    graph: torch.fx.Graph, values: Mapping[str, torch.Tensor], changing: Collection[str]
) -> tuple[list[torch.Tensor], Trail]:
    """The same, and what each call got and left; `changing` are the placeholders that do not stand for constants."""
    fixed = (value for name, value in values.items() if name not in changing)
    observing = _Observing(graph, frozenset(value.untyped_storage().data_ptr() for value in fixed))
    return _run(observing, graph, values), observing.trail


def _run(interpreter: "_Interpreter", graph: torch.fx.Graph, values: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    given = [values[node.name] for node in graph.find_nodes(op="placeholder")]
    with torch.no_grad():
        results = interpreter.run(*given)
    return [resolved(one) for one in _pytree.tree_leaves(results) if isinstance(one, torch.Tensor)]


class _Interpreter(torch.fx.Interpreter):
    """Runs a graph that has no module. What orders streams does nothing here, and memory that nothing was written to
    holds zeros: what is left in it else is other in each run."""

    def __init__(self, graph: torch.fx.Graph):
        super().__init__(torch.nn.Module(), graph=graph)

    def run_node(self, n: Node) -> Any:
        is_order = isinstance(n.target, torch._ops.OpOverload) and air.is_marker(n.target)
        result: Any = None if is_order else super().run_node(n)
        if n.target in UNINITIALISED:
            result.zero_()
        return result


class _Observing(_Interpreter):
    """Notes the calls that make the device work. `fixed`: the memory of constants, which nothing writes into."""

    def __init__(self, graph: torch.fx.Graph, fixed: frozenset[int]):
        super().__init__(graph)
        self._fixed = fixed
        self.trail: dict[str, Seen] = {}

    def run_node(self, n: Node) -> Any:
        if not launches(n) or n.target in UNINITIALISED:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        again = _Again(n, args, kwargs, self._fixed)
        result = super().run_node(n)
        made = Made(line_of(n), module_of(n), passes_of(n))
        self.trail[n.name] = Seen(
            n.name, str(n.target), made, again.given, kept(_left(n, args, kwargs, result)), n, again
        )
        return result


class _Again:
    """A call of a graph, to be made once more; `given` are copies of the tensors that it got, None for constants."""

    def __init__(self, node: Node, args: Sequence[object], kwargs: Mapping[str, object], fixed: frozenset[int]):
        leaves, self._shape = _pytree.tree_flatten((args, kwargs))
        is_tensor = [isinstance(one, torch.Tensor) for one in leaves]
        is_fixed = [there and one.untyped_storage().data_ptr() in fixed for one, there in zip(leaves, is_tensor)]
        target = (
            next((place for place, there in enumerate(is_tensor) if there), -1) if overwrites(str(node.target)) else -1
        )
        self._node, self._target = node, target
        self._places = [place for place, there in enumerate(is_tensor) if there and place != target]
        self._leaves = [
            one if not there or kind or place == target else None
            for place, (one, there, kind) in enumerate(zip(leaves, is_tensor, is_fixed))
        ]
        self.given = kept([None if is_fixed[place] else leaves[place] for place in self._places])

    def __call__(self, given: Tensors) -> Tensors:
        leaves = list(self._leaves)
        if isinstance(place := leaves[self._target], torch.Tensor) and self._target >= 0:
            leaves[self._target] = torch.empty_like(place)
        for number, tensor in zip(self._places, given):
            if leaves[number] is None:
                leaves[number] = None if tensor is None else tensor.clone()
        args, kwargs = _pytree.tree_unflatten(leaves, self._shape)
        with torch.no_grad():
            result = self._node.target(*args, **kwargs)  # type: ignore[operator]  # the op of a call
        return kept(_left(self._node, args, kwargs, result))


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
