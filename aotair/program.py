"""From an exported, optimised graph to a program: every bucket specialised, planned, checked and emitted."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.fx.node import Node

from aotair_runtime.artifact.checkpoint import open_checkpoint
from aotair_runtime.artifact.quantisation import quantisation_of
from aotair_runtime.format.debug_data import DebugData
from aotair_runtime.format.prologue import tensors
from aotair_runtime.format.schema import (
    Bucket,
    Constant,
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
)
from aotair_runtime.format.structure import leaf_names

from .emit.emitter import Tables, emit
from .errors import InternalError, RecipeError
from .export.exported import Exported
from .graph.derived import derivations
from .graph.operand import results_of
from .graph.verify import check_graph
from .lower.select import Kernel, select
from .lower.specialise import specialise
from .parallel.split import Part
from .passes import pipeline
from .passes.observer import Observer
from .plan.check import violations
from .plan.lifetimes import Lifetimes, lifetimes
from .plan.picture import Picture, picture
from .plan.search.arena import Plan, plan_arena
from .plan.shared import Interface, shared_places
from .recipe.entry import EntryJob
from .recipe.job import Job
from .recipe.recipe import InputPart
from .share import shared_out
from .stored import StoredConstants

TORCH_MIN = "2.9"
_WORTH = 5000  # intervals of all buckets whose planning is worth other processes
ALIGNMENT = 64  # bytes: a cache line, and the widest vector


@dataclass(frozen=True)
class Built:
    """A program, the tensors of its constants by name, and what lies where in the arena, by entry point and bucket:
    `pictures[entry.name, bucket.sizes]`; and where its instructions come from."""

    program: Program
    weights: Mapping[str, torch.Tensor]
    pictures: Mapping[tuple[str, tuple[int, ...]], Picture]
    debug: DebugData = field(default_factory=DebugData)


def build_program(
    exported: Sequence[Exported],
    job: Job,
    progress: Callable[[int, int], None],
    observer: Observer | None = None,
    stop_after: str | None = None,
    parts: Mapping[str, Part] | None = None,
    jobs: int = 1,
) -> Built:
    """`exported` has a graph or more for each of the recipe's entry points; `progress` hears (buckets done, in all),
    `observer` the passes over each bucket's graph, of which `stop_after` names the last. `parts`: by name, the model's
    tensors of which `exported` has rank 0's parts. So many processes share the planning, where that is worth it."""
    observer = observer or Observer(job.target)
    tables = Tables(axes=tuple(axis.name for axis in job.mesh))
    stored = StoredConstants(exported[0].names, job.model.share_equal_weights, parts or {}, job.mesh)
    total = sum(len(one.bucket_sizes()) for one in job.entries)
    entries: list[EntryPoint] = []
    pictures: dict[tuple[str, tuple[int, ...]], Picture] = {}
    done = 0
    for one in job.entries:
        graphs = [graph for graph in exported if graph.entry == one.entry]
        lowered = []
        for sizes in one.bucket_sizes():
            progress(done, total)
            graph = next(graph for graph in graphs if graph.serves(sizes))
            lowered.append(_lowered(graph, job, one, sizes, observer, stop_after))
            done += 1
        plans = _plans(job, lowered, jobs)
        pictures |= {
            (one.entry, item.sizes): picture(item.graph, item.lives, plan, ALIGNMENT)
            for item, plan in zip(lowered, plans)
        }
        entries.append(_entry_point(graphs[0], one, _emitted(job, one, zip(lowered, plans), tables, stored)))
    progress(total, total)
    states = _states(exported, tables, stored)
    prologue = stored.prologue(tables, job.config.experimental_config.plan_effort, ALIGNMENT)
    constants = tuple(map(stored.constant, tables.constants.values()))
    program = replace(_program(job, entries, tables, states, constants), prologue=prologue)
    names = exported[0].names
    program = replace(program, unread=names.unread(tensors(program)), joined=names.joined)
    program, values = stored.whole(program)
    return Built(program, values, pictures, tables.debug_data())


def _states(exported: Sequence[Exported], tables: Tables, stored: StoredConstants) -> tuple[State, ...]:
    """The states, each with the constant of its first value: kept aside, since the original model goes on writing into
    its own buffer."""
    values = {item.name: item.tensor.clone() for graph in exported for item in graph.states.values()}
    constants = {name: stored.name_of(name, values[name]) for name in tables.states.values()}
    return tuple(State(name, tables.constants.number(constant)) for name, constant in constants.items())


def _program(
    job: Job,
    entries: Sequence[EntryPoint],
    tables: Tables,
    states: tuple[State, ...],
    constants: tuple[Constant, ...],
) -> Program:
    return Program(
        name=job.name,
        requirements=_requirements(job),
        options=_options(job),
        tolerance=job.tolerance,
        constants=constants,
        state=states,
        ops=tuple(tables.ops.values()),
        layouts=tuple(tables.layouts.values()),
        instructions=tuple(tables.instructions.values()),
        entry_points=tuple(entries),
        arena=max(bucket.height for entry in entries for bucket in entry.buckets),
        alignment=ALIGNMENT,
        files=(),
        reserve=Reserve(_workspace(job), job.needs.reserve, job.needs.hccl_buffer or 0),
        quantisation=_quantisation(job),
        mesh=job.mesh,
    )


def _quantisation(job: Job) -> str:
    """What the checkpoint's folder says of how its weights are quantised."""
    weights = job.model.checkpoint
    return "" if weights is None else quantisation_of(open_checkpoint(job.folder / weights.path))


def _requirements(job: Job) -> Requirements:
    needs = job.needs
    built, budget = torch.__version__.split("+")[0], needs.memory_budget or 0
    limits = (0, budget) if isinstance(budget, float) else (budget, 0.0)
    return Requirements(TORCH_MIN, built, needs.device, needs.torch_npu or "", needs.soc or "", *limits)


def _workspace(job: Job) -> int:
    """What kernels take for each stream: as the recipe says, or else what their libraries are known to take."""
    given = job.needs.workspace
    return job.target.workspace if given is None else given


def _options(job: Job) -> Options:
    aclgraph = job.config.debug.aclgraph
    return Options(aclgraph.clone_input, aclgraph.enable_output_clone, aclgraph.disable_mempool_reuse_in_same_fx)


@dataclass(frozen=True)
class _Lowered:
    """One bucket's graph, and what of it needs memory."""

    exported: Exported
    sizes: tuple[int, ...]
    where: str
    graph: torch.fx.Graph
    kernels: Mapping[Node, Kernel]
    lives: Lifetimes


def _lowered(
    exported: Exported, job: Job, one: EntryJob, sizes: tuple[int, ...], observer: Observer, stop_after: str | None
) -> _Lowered:
    module, where = _bucket_graph(exported, job, one, sizes, observer, stop_after)
    kernels = select(module.graph, job.target)
    lives = lifetimes(module.graph, _spaces(exported, module.graph, one), kernels)
    return _Lowered(exported, sizes, where, module.graph, kernels, lives)


def run_bucket_passes(exported: Sequence[Exported], job: Job, observer: Observer) -> None:
    """The passes that need numbers for sizes, over the graph of each entry point's largest bucket."""
    for one in job.entries:
        sizes = max(one.bucket_sizes(), key=math.prod)
        graph = next(graph for graph in exported if graph.entry == one.entry and graph.serves(sizes))
        _bucket_graph(graph, job, one, sizes, observer, None)


def _bucket_graph(
    exported: Exported, job: Job, one: EntryJob, sizes: tuple[int, ...], observer: Observer, stop_after: str | None
) -> tuple[torch.fx.GraphModule, str]:
    """One bucket's graph after its passes, and what errors call it."""
    module, bucket = specialised(exported, job, one, sizes)
    with observer.over(bucket if one.entry == "forward" else f"{one.entry}, {bucket}"):
        pipeline.apply_to_bucket(module, job.config, job.target, observer, stop_after)
    return module, f"{one.where}: bucket {bucket}"


def specialised(
    exported: Exported, job: Job, one: EntryJob, sizes: tuple[int, ...]
) -> tuple[torch.fx.GraphModule, str]:
    """One bucket's graph before its passes, and what the bucket is called."""
    by_dim = dict(zip(one.dims(), sizes, strict=True))
    shapes = {
        placeholder: tuple(by_dim[size] if isinstance(size, str) else size for size in one.inputs[name].shape)
        for name, placeholder in exported.inputs.items()
    }
    bucket = one.bucket_name(sizes)
    module = specialise(exported.module, shapes, f"{one.where}: bucket {bucket}", job.target)
    check_graph(module, "specialise")
    return module, bucket


def _interface(item: _Lowered, plan: Plan) -> Interface:
    places = {node.name: position for position, node in enumerate(item.graph.find_nodes(op="placeholder"))}
    homes = [item.lives.home(node) for node in results_of(item.graph)]
    return Interface(
        item.lives.intervals,
        plan,
        tuple(item.lives.copies.get(places[name]) for name in item.exported.inputs.values()),
        tuple(home.root.index if home is not None and home.root.space == Space.ARENA else None for home in homes),
    )


def _plans(job: Job, lowered: Sequence[_Lowered], jobs: int) -> list[Plan]:
    """The plans of an entry point's buckets, the lowest that are found, with one layout of inputs and outputs where
    that costs nothing; proved."""
    effort = job.config.experimental_config.plan_effort
    many = sum(len(item.lives.intervals) for item in lowered) > _WORTH
    tasks = [functools.partial(plan_arena, item.lives.intervals, ALIGNMENT, effort) for item in lowered]
    lowest = shared_out(tasks, jobs if many else 1)
    interfaces = [_interface(item, plan) for item, plan in zip(lowered, lowest, strict=True)]
    plans = shared_places(interfaces, ALIGNMENT, effort)
    for item, plan in zip(lowered, plans, strict=True):
        if wrong := violations(item.lives.intervals, plan, ALIGNMENT):
            raise InternalError(f"{item.where}: the memory plan is wrong: {wrong[0]}")
    return plans


def _emitted(
    job: Job,
    one: EntryJob,
    planned: Iterable[tuple[_Lowered, Plan]],
    tables: Tables,
    stored: StoredConstants,
) -> tuple[Bucket, ...]:
    """The programs of an entry point's buckets."""
    found, known = [], dict[int, dict[str, str]]()
    for item, plan in planned:
        exported = item.exported
        if id(exported) not in known:  # each name takes a digest of its tensor
            states = {placeholder: constant.name for placeholder, constant in exported.states.items()}
            known[id(exported)] = stored.names(exported) | states
        names = known[id(exported)] | stored.made_by(item.graph, exported)
        inputs = list(exported.inputs.values())
        hosts = [placeholder for name, placeholder in exported.inputs.items() if one.inputs[name].host]
        found.append(emit(item.graph, item.lives, plan, tables, names, inputs, item.sizes, item.kernels, hosts))
    return tuple(found)


def _spaces(exported: Exported, bucket: torch.fx.Graph, job: EntryJob) -> dict[str, Space]:
    graphs = (exported.module.graph, bucket)
    derived = (placeholder.name for graph in graphs for placeholder, _, _ in derivations(graph))
    spaces = dict.fromkeys((*exported.constants, *derived), Space.CONSTANT)
    spaces |= dict.fromkeys(exported.states, Space.STATE)
    for name, placeholder in exported.inputs.items():
        spaces[placeholder] = Space.CALLER if job.inputs[name].mutated else Space.INPUT
    return spaces


def _entry_point(exported: Exported, job: EntryJob, buckets: tuple[Bucket, ...]) -> EntryPoint:
    dims = job.dims()
    inputs = tuple(
        Input(
            name,
            "mutated" if item.mutated else "user",
            item.dtype,
            tuple(("dim", dims.index(size)) if isinstance(size, str) else size for size in item.shape),
            item.fill,
            _legal(item, job),
            item.host,
        )
        for name, item in job.inputs.items()
    )
    results = results_of(exported.module.graph)
    cloned = _cloned(exported, job)
    outputs = tuple(
        Output(_dtype(node.meta["val"]), shape, number in cloned)
        for number, (node, shape) in enumerate(zip(results, exported.outputs, strict=True))
    )
    order = sorted(range(len(buckets)), key=lambda i: (-buckets[i].height, i))
    return EntryPoint(
        job.entry,
        tuple(_dim(job, dim) for dim in dims),
        inputs,
        outputs,
        exported.structure,
        buckets,
        tuple(order),
        (*job.constant_values().items(), *exported.defaults),
    )


def _dim(job: EntryJob, dim: str) -> Dim:
    least = job.least(dim)
    return Dim(dim, job.paddable(dim), least if least > 1 else 0)


def _legal(item: InputPart, job: EntryJob) -> tuple[float, ...] | None:
    """The values that the build uses in the largest bucket along each dimension, where it is told any."""
    if item.range is None and (item.mask is None or item.dtype == "bool"):
        return None
    largest = [max(sizes) for sizes in zip(*job.bucket_sizes())]
    bounds = item.bounds(dict(zip(job.dims(), largest)))
    return None if bounds is None else tuple(map(float, bounds))


def _cloned(exported: Exported, job: EntryJob) -> set[int]:
    """The outputs that the recipe wants as tensors of their own, by number. Raises RecipeError."""
    names = list(leaf_names(exported.structure))
    found = set()
    for key, part in job.outputs.items():
        number = key if isinstance(key, int) else names.index(key) if key in names else -1
        if not 0 <= number < len(names):
            raise RecipeError(
                f"outputs.{key}: the model does not return it",
                where=job.where,
                got=repr(key),
                expected=f"a number below {len(names)}, or one of {', '.join(names)}",
            )
        found |= {number} if part.clone else set()
    return found


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
