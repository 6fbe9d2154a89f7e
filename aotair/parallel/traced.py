"""What does a rank compute whose model torch.distributed shares out (DTensor)? A graph over the parts that it has, with
the collectives by which it meets the others; torch.export takes a model that calls it."""

import functools
import inspect
import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils import _pytree

from aotair_runtime.errors import AotairError
from aotair_runtime.format.torch_names import dtype

from ..errors import ModelError, SizesError, UnsupportedError, user_frame
from ..graph.fake import quiet_torch
from ..model.arguments import MethodArguments, register_results
from ..model.reference import calling
from ..recipe.entry import EntryJob
from .placements import as_torch_has_it, whole
from .recomposed import recompose

log = logging.getLogger("aotair")

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Traced:
    """What a rank computes in one method of its model: each graph, `graph(tensors, leaves)`, takes the model's tensors
    by name and the tensors among the leaves of its arguments, and gives the leaves of its result. There is one for all
    sizes, by the key None, or one for the leaves' shapes of each bucket."""

    method: str
    graphs: Mapping[Shapes | None, torch.fx.GraphModule]
    arguments: _pytree.TreeSpec
    result: _pytree.TreeSpec


def traced(model: nn.Module, shared: Mapping[str, DTensor], job: EntryJob, for_all_sizes: bool) -> Traced:
    """An entry point of a model with these shared tensors, over what this rank has of them; with one graph where that
    can be, and `for_all_sizes` says that other ranks have it. Raises ModelError where it cannot be called,
    UnsupportedError for lists of the host."""
    if any(item.host for item in job.inputs.values()):
        raise UnsupportedError(
            "mesh: a model that torch shares out (DTensor) takes no lists of the host",
            where=job.where,
            fix="leave out host: true, or share out by patterns: parallel: {PATTERN: STYLE}",
        )
    tracer = _Tracer(model, shared, job)
    graphs: dict[Shapes | None, torch.fx.GraphModule] = {}
    if for_all_sizes and (graph := tracer.graph_for_all_sizes()) is not None:
        graphs = {None: graph}
    else:
        graphs = dict(tracer.graph(_at(bucket)) for bucket in job.bucket_sizes())
        graphs |= dict(tracer.smaller_graphs())
    return Traced(job.method, graphs, tracer.arguments, tracer.result)


# (the entry point, where symbols come from) to the size of each dimension.
_Sizes = Callable[[EntryJob, ShapeEnv], dict[str, Any]]


class _Tracer:
    """`arguments` and `result`: how those of the last graph are put together; `_symbols`: its sizes, as SymPy has
    them."""

    def __init__(self, model: nn.Module, shared: Mapping[str, DTensor], job: EntryJob):
        self._model, self._shared, self._job = model, shared, job
        self._make_arguments = MethodArguments(getattr(model, job.method), job)
        self.arguments: _pytree.TreeSpec
        self.result: _pytree.TreeSpec
        self._symbols: list[Any]

    def graph(self, sizes: _Sizes) -> tuple[Shapes, torch.fx.GraphModule]:
        """What the method computes for inputs of these sizes, behind their shapes."""
        leaves, own = self._given(sizes)

        def call(tensors: Mapping[str, Tensor], given: Sequence[Tensor]) -> list[object]:
            args, kwargs = _pytree.tree_unflatten(_with_tensors(leaves, given), self.arguments)
            # By position where that can be: hooks that share inputs out hear of nothing else.
            bound = inspect.signature(self._model.forward).bind(*args, **kwargs)
            have = self._as_torch_has_them(tensors)
            made = torch.func.functional_call(self._model, have, bound.args, bound.kwargs)
            register_results(made)
            flat, self.result = _pytree.tree_flatten(made)
            return [whole(leaf) for leaf in flat]

        given = _tensors_of(leaves)
        try:
            with quiet_torch(), torch.no_grad(), calling(self._model, self._job.method):
                graph = make_fx(call, tracing_mode="real", _allow_non_fake_inputs=True)(own, given)
        except AotairError:
            raise
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"mesh: the model that torch shares out (DTensor) cannot be traced{user_frame(error)}",
                where=self._job.where,
                got=f"{type(error).__name__}: {text[:400]}",
                fix="call .full_tensor() before what torch cannot trace of shared tensors (argmax, say, for which "
                "max(dim).indices does too), or share the model out by patterns: parallel: {PATTERN: STYLE}",
            ) from error
        recompose(graph.graph)
        graph.recompile()
        return shapes(leaves), graph

    def graph_for_all_sizes(self) -> torch.fx.GraphModule | None:
        """A graph with symbolic sizes; None where there is none that is right for every call. What torch assumes of
        sizes while it chooses how to share out does not count: it chose, and the graph is what it came to."""
        try:
            _, graph = self.graph(_symbols)
            leaves, own = self._given(_symbols)
            mode = next(iter(own.values())).fake_mode
            with quiet_torch(), torch.no_grad(), mode:
                graph(own, _tensors_of(leaves))
        except Exception as error:
            log.info("%s has no graph for all sizes: %s", self._job.method, error)
            return None
        assert mode.shape_env is not None, "given to it"
        assumed = [guard.expr for guard in mode.shape_env.guards]
        at = [dict(zip(self._symbols, sizes, strict=True)) for sizes in _sizes_of_calls(self._job)]
        return graph if all(bool(expr.xreplace(sizes)) for sizes in at for expr in assumed) else None

    def smaller_graphs(self) -> Iterator[tuple[Shapes, torch.fx.GraphModule]]:
        """Those of padded calls whose sizes no bucket has, where there are such; nothing is made of them but how large
        results are."""
        for sizes in self._job.smaller_calls():
            try:
                yield self.graph(_at(sizes))
            except ModelError as error:
                log.info("%s cannot be traced at %s: %s", self._job.method, sizes, error)

    def _given(self, sizes: _Sizes) -> tuple[list[object], dict[str, FakeTensor]]:
        """The leaves of the arguments, and the model's tensors by name, of a world of their own."""
        env = ShapeEnv(duck_shape=False)
        # What DTensor makes of plain numbers within a call is real, and everything else is not.
        mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
        known = sizes(self._job, env)
        self._symbols = [size.node.expr if isinstance(size, torch.SymInt) else size for size in known.values()]
        with mode:
            values = {
                name: torch.empty([known.get(str(size), size) for size in item.shape], dtype=dtype(item.dtype))
                for name, item in self._job.inputs.items()
            }
        leaves, self.arguments = _pytree.tree_flatten(self._make_arguments(values))
        tensors = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        parts = {name: self._shared[name].to_local() if name in self._shared else tensors[name] for name in tensors}
        return leaves, {name: mode.from_tensor(part.detach(), static_shapes=True) for name, part in parts.items()}

    def _as_torch_has_them(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {n: as_torch_has_it(self._shared[n], one) if n in self._shared else one for n, one in tensors.items()}


def _symbols(job: EntryJob, env: ShapeEnv) -> dict[str, Any]:
    """A symbol for each dimension of several sizes; it stands for that of the largest bucket."""
    found: dict[str, Any] = {}
    buckets = job.bucket_sizes()
    for dim, large, sizes in zip(job.dims(), buckets[-1], zip(*buckets, strict=True), strict=True):
        source = ConstantSource(f"size_{dim}")
        if len(set(sizes)) == 1 and not job.paddable(dim):
            found[dim] = large
        else:
            symbol = env.create_symbol(large, source, dynamic_dim=DimDynamic.DYNAMIC)
            found[dim] = env.create_symintnode(symbol, hint=large, source=source)
    return found


def _sizes_of_calls(job: EntryJob) -> Iterator[tuple[int, ...]]:
    """Those of every bucket, and of calls that are padded along one dimension to the largest."""
    buckets = job.bucket_sizes()
    yield from buckets
    for number, dim in enumerate(job.dims()):
        for size in range(job.least(dim), buckets[-1][number]) if job.paddable(dim) else ():
            yield (*buckets[-1][:number], size, *buckets[-1][number + 1 :])


def _at(bucket: Sequence[int]) -> _Sizes:
    return lambda job, env: dict(zip(job.dims(), bucket, strict=True))


def shapes(leaves: Sequence[object]) -> Shapes:
    """Those of the tensors."""
    return tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor))


def _with_tensors(leaves: Sequence[object], tensors: Sequence[Tensor]) -> list[object]:
    """The leaves, with these tensors in the places of theirs."""
    given = iter(tensors)
    return [next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def call_traced(own: nn.Module, model: nn.Module, methods: Sequence[Traced], tensors: Sequence[str]) -> None:
    """Let a module that has these tensors have the methods of `model` too: calls of what was traced."""
    for one in methods:
        own.__dict__[one.method] = _calling(own, getattr(model, one.method), one, tensors)


def _calling(
    own: nn.Module, method: Callable[..., object], one: Traced, tensors: Sequence[str]
) -> Callable[..., object]:
    @functools.wraps(method)
    def call(*args: object, **kwargs: object) -> object:
        leaves, arguments = _pytree.tree_flatten((args, kwargs))
        assert arguments == one.arguments, "the recipe's inputs, as when it was traced"
        graph = one.graphs.get(None) or one.graphs.get(_numbers(shapes(leaves), one.method))
        if graph is None:
            raise SizesError(f"buckets: {one.method} cannot be traced at these sizes")
        made = graph({name: operator.attrgetter(name)(own) for name in tensors}, _tensors_of(leaves))
        return _pytree.tree_unflatten(made, one.result)

    return call


def _tensors_of(leaves: Sequence[object]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _numbers(sizes: Shapes, method: str) -> Shapes:
    """The same, where they are numbers. Raises SizesError for symbols: then each bucket gets a graph of its own."""
    if any(not isinstance(size, int) for shape in sizes for size in shape):
        raise SizesError(
            f"buckets: what torch shares out of {method} is another program for each size",
            expected="a program for all sizes",
            got="placements of activations that cut a dimension of several sizes",
        )
    return sizes
