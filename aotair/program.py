"""From an exported, optimised graph to a program: every bucket specialised, planned, checked and emitted."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from aotair_runtime.format.schema import (
    Bucket,
    Dim,
    EntryPoint,
    Input,
    Options,
    Output,
    Program,
    Requirements,
    Reserve,
    Space,
    State,
    Tolerance,
)
from aotair_runtime.format.structure import leaf_names

from .emit.constants import DistinctTensors
from .emit.emitter import Tables, emit
from .errors import InternalError, RecipeError
from .export.export import Exported
from .graph.verify import verify
from .lower.specialise import Nodes, specialise
from .passes import pipeline
from .passes.observer import Observer
from .plan.check import violations
from .plan.lifetimes import Lifetimes, lifetimes
from .plan.picture import Picture, picture
from .plan.search.arena import Plan, plan_arena
from .plan.shared import Interface, shared_places
from .recipe.recipe import InputPart, Recipe
from .target.target import Target

TORCH_MIN = "2.9"
ALIGNMENT = 64  # bytes: a cache line, and the widest vector


@dataclass(frozen=True)
class Built:
    """A program, the tensors of its constants by name, and what lies where in the arena, by entry point and bucket:
    `pictures[entry.name, bucket.sizes]`."""

    program: Program
    weights: Mapping[str, torch.Tensor]
    pictures: Mapping[tuple[str, tuple[int, ...]], Picture]


def build_program(
    exported: Sequence[Exported],
    recipe: Recipe,
    progress: Callable[[int, int], None],
    observer: Observer | None = None,
    stop_after: str | None = None,
) -> Built:
    """`exported` has a graph or more for each of the recipe's entry points; `progress` hears (buckets done, in all),
    `observer` the passes over each bucket's graph, of which `stop_after` names the last."""
    observer = observer or Observer(Target(recipe.target.device))
    tables, distinct = Tables(), DistinctTensors(exported[0].names, recipe.model.share_equal_weights)
    total = sum(len(one.bucket_sizes()) for one in recipe.entries())
    entries, pictures, done = [], {}, 0
    for one in recipe.entries():
        graphs = [graph for graph in exported if graph.entry == one.entry]
        planned = []
        for sizes in one.bucket_sizes():
            progress(done, total)
            graph = next(graph for graph in graphs if graph.serves(sizes))
            planned.append(_planned(graph, one, sizes, observer, stop_after))
            done += 1
        plans = _plans(one, planned)
        pictures |= {
            (one.entry, item.sizes): picture(item.graph, item.lives, plan, ALIGNMENT)
            for item, plan in zip(planned, plans)
        }
        entries.append(_entry_point(graphs[0], one, _emitted(one, zip(planned, plans), tables, distinct)))
    progress(total, total)
    # The first value of a state is kept aside: the original model goes on writing into its own buffer.
    by_state = {c.name: c.tensor.clone() for graph in exported for c in graph.states.values()}
    states = tuple(
        State(name, tables.constants.number(distinct.name_of(name, by_state[name]))) for name in tables.states.values()
    )
    weights = {name: distinct.tensor(name) for name in tables.constants.values()}
    program = Program(
        name=recipe.name,
        requirements=_requirements(recipe),
        options=_options(recipe),
        tolerance=Tolerance(*recipe.tolerance()),
        constants=tuple(map(distinct.constant, weights)),
        state=states,
        ops=tuple(tables.ops.values()),
        layouts=tuple(tables.layouts.values()),
        instructions=tuple(tables.instructions.values()),
        entry_points=tuple(entries),
        arena=max(bucket.height for entry in entries for bucket in entry.buckets),
        alignment=ALIGNMENT,
        files=(),
        reserve=Reserve(_workspace(recipe), recipe.target.reserve),
    )
    program = replace(program, unread=exported[0].names.unread(program.constants))
    return Built(program, weights, pictures)


def _requirements(recipe: Recipe) -> Requirements:
    target = recipe.target
    built, budget = torch.__version__.split("+")[0], target.memory_budget or 0
    limits = (0, budget) if isinstance(budget, float) else (budget, 0.0)
    return Requirements(TORCH_MIN, built, target.device, target.torch_npu or "", target.soc or "", *limits)


def _workspace(recipe: Recipe) -> int:
    """What kernels take for each stream: as the recipe says, or else what their libraries are known to take."""
    given = recipe.target.workspace
    return Target(recipe.target.device).workspace if given is None else given


def _options(recipe: Recipe) -> Options:
    aclgraph = recipe.config.debug.aclgraph
    return Options(aclgraph.clone_input, aclgraph.enable_output_clone, aclgraph.disable_mempool_reuse_in_same_fx)


@dataclass(frozen=True)
class _Planned:
    """One bucket's graph, what of it needs memory, and the lowest plan found."""

    exported: Exported
    sizes: tuple[int, ...]
    where: str
    graph: torch.fx.Graph
    lives: Lifetimes
    plan: Plan


def _planned(
    exported: Exported, recipe: Recipe, sizes: tuple[int, ...], observer: Observer, stop_after: str | None
) -> _Planned:
    by_dim = dict(zip(recipe.dims(), sizes, strict=True))
    shapes = {
        placeholder: tuple(by_dim.get(d, d) for d in recipe.inputs[name].shape)
        for name, placeholder in exported.inputs.items()
    }
    bucket = ", ".join(f"{dim}={size}" for dim, size in by_dim.items()) or "static"
    where = f"{recipe.where}: bucket {bucket}"
    module = specialise(
        exported.module, shapes, where, Nodes(recipe.target.device, tuple(recipe.target.allow_namespaces))
    )
    verify(module, "specialise")
    target = Target(recipe.target.device)
    with observer.over(bucket if recipe.entry == "forward" else f"{recipe.entry}, {bucket}"):
        pipeline.apply_to_bucket(module, recipe.config, target, observer, stop_after)
    lives = lifetimes(module.graph, _spaces(exported, recipe), target)
    effort = recipe.config.experimental_config.plan_effort
    return _Planned(exported, sizes, where, module.graph, lives, plan_arena(lives.intervals, ALIGNMENT, effort))


def _interface(item: _Planned) -> Interface:
    places = {node.name: position for position, node in enumerate(item.graph.find_nodes(op="placeholder"))}
    homes = [item.lives.home(node) for node in item.graph.output_node().args[0]]
    return Interface(
        item.lives.intervals,
        item.plan,
        tuple(item.lives.copies.get(places[name]) for name in item.exported.inputs.values()),
        tuple(home.root.index if home.root.space == Space.ARENA else None for home in homes),
    )


def _plans(recipe: Recipe, planned: Sequence[_Planned]) -> list[Plan]:
    """The plans of an entry point's buckets, with one layout of inputs and outputs where that costs nothing; proved."""
    interfaces = [_interface(item) for item in planned]
    plans = shared_places(interfaces, ALIGNMENT, recipe.config.experimental_config.plan_effort)
    for item, plan in zip(planned, plans, strict=True):
        if wrong := violations(item.lives.intervals, plan, ALIGNMENT):
            raise InternalError(f"{item.where}: the memory plan is wrong: {wrong[0]}")
    return plans


def _emitted(
    recipe: Recipe,
    planned: Iterable[tuple[_Planned, Plan]],
    tables: Tables,
    distinct: DistinctTensors,
) -> tuple[Bucket, ...]:
    """The programs of an entry point's buckets."""
    target, found = Target(recipe.target.device), []
    for item, plan in planned:
        exported = item.exported
        names = {p: distinct.name_of(c.name, c.tensor) for p, c in exported.read_constants().items()}
        names |= {p: constant.name for p, constant in exported.states.items()}
        inputs = list(exported.inputs.values())
        hosts = [placeholder for name, placeholder in exported.inputs.items() if recipe.inputs[name].host]
        found.append(emit(item.graph, item.lives, plan, tables, names, inputs, item.sizes, target, hosts))
    return tuple(found)


def _spaces(exported: Exported, recipe: Recipe) -> dict[str, Space]:
    spaces = dict.fromkeys(exported.constants, Space.CONSTANT) | dict.fromkeys(exported.states, Space.STATE)
    for name, placeholder in exported.inputs.items():
        spaces[placeholder] = Space.CALLER if recipe.inputs[name].mutated else Space.INPUT
    return spaces


def _entry_point(exported: Exported, recipe: Recipe, buckets: tuple) -> EntryPoint:
    dims = recipe.dims()
    inputs = tuple(
        Input(
            name,
            "mutated" if item.mutated else "user",
            item.dtype,
            tuple(("dim", dims.index(size)) if isinstance(size, str) else size for size in item.shape),
            item.fill,
            _legal(item, recipe),
            item.host,
        )
        for name, item in recipe.inputs.items()
    )
    results = exported.module.graph.output_node().args[0]
    cloned = _cloned(exported, recipe)
    outputs = tuple(
        Output(_dtype(node.meta["val"]), shape, number in cloned)
        for number, (node, shape) in enumerate(zip(results, exported.outputs, strict=True))
    )
    order = sorted(range(len(buckets)), key=lambda i: (-buckets[i].height, i))
    return EntryPoint(
        recipe.entry,
        tuple(_dim(recipe, dim) for dim in dims),
        inputs,
        outputs,
        exported.structure,
        buckets,
        tuple(order),
        (*recipe.constant_values().items(), *exported.defaults),
    )


def _dim(recipe: Recipe, dim: str) -> Dim:
    least = recipe.least(dim)
    return Dim(dim, recipe.paddable(dim), least if least > 1 else 0)


def _legal(item: InputPart, recipe: Recipe) -> tuple[float, ...] | None:
    """The values that the build uses in the largest bucket along each dimension, where it is told any."""
    if item.range is None and (item.mask is None or item.dtype == "bool"):
        return None
    largest = [max(sizes) for sizes in zip(*recipe.bucket_sizes())]
    return tuple(map(float, item.bounds(dict(zip(recipe.dims(), largest)))))


def _cloned(exported: Exported, recipe: Recipe) -> set[int]:
    """The outputs that the recipe wants as tensors of their own, by number. Raises RecipeError."""
    names = list(leaf_names(exported.structure))
    found = set()
    for key, part in recipe.outputs.items():
        number = key if isinstance(key, int) else names.index(key) if key in names else -1
        if not 0 <= number < len(names):
            raise RecipeError(
                f"outputs.{key}: the model does not return it", where=recipe.where, got=repr(key),
                expected=f"a number below {len(names)}, or one of {', '.join(names)}",
            )  # fmt: skip
        found |= {number} if part.clone else set()
    return found


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
