"""A model whose factory lets torch share it out (DTensor, as `parallelize_module` makes it): what the ranks compute is
traced for each of them, and has to be one program.

Each rank is traced in a copy of this process, since torch keeps what it knows of a process group for the next one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from aotair_runtime.errors import AotairError
from aotair_runtime.format.mesh import part_of, ranks_of
from aotair_runtime.format.schema import Axis, Shard

from ..errors import ModelError
from ..graph.fake import quiet_torch
from ..recipe.entry import EntryJob
from ..share import copy_at_work
from .agreed import agreed, cut_of
from .placements import shard_of, shared_by_torch
from .shown import shards_shown, whole_shown
from .split import Part, Split
from .stages import named_tensors
from .traced import Traced, call_traced, traced
from .world import Make, in_own_words, world

T = TypeVar("T")


@dataclass(frozen=True)
class _Rank:
    """What a rank's model is: how torch shares out tensors; the others, with their values; which of all these are
    `parameters`, and which a checkpoint has (`kept`); and what its methods compute."""

    shards: Mapping[str, Shard | None]
    plain: Mapping[str, Tensor]
    parameters: frozenset[str]
    kept: frozenset[str]
    methods: Sequence[Traced]


def split_by_torch(
    make: Make, whole: nn.Module, model: nn.Module, mesh: Sequence[Axis], entries: Sequence[EntryJob], where: str
) -> Split | None:
    """The model as rank 0 has it; None where torch shares nothing out. `whole` is what the factory makes without a
    mesh, `model` the same with the weights that the artifact will have. Raises ModelError where a rank's tensor is no
    part of the whole, UnsupportedError where ranks do different things."""
    ranks: list[_Rank] = []
    for rank in range(ranks_of(mesh)):
        like = ranks[0].methods if ranks else ()
        found = _in_a_copy(lambda: _rank(make, mesh, rank, entries, like, where), where)  # noqa: B023 (called at once)
        if found is None:
            return None
        ranks.append(found)
    values = _by_name(model)
    parts = _parts(whole, values, ranks, mesh, where)
    own = _holder(values, ranks[0], parts)
    methods = [_on_all_ranks(those) for those in zip(*(rank.methods for rank in ranks), strict=True)]
    for number, one in enumerate(methods):
        for place, (shapes, graph) in enumerate(one.graphs.items()):
            own.add_module(name := f"traced_{one.method}_{place}", graph)
            graph._non_persistent_buffers_set.update(graph._buffers)  # tensors of the code, which no checkpoint has
            for held, numbers in agreed([rank.methods[number].graphs[shapes] for rank in ranks], where).items():
                parts[f"{name}.{held}"] = Part(*cut_of(numbers, mesh, where))
    call_traced(own, model, methods, [*ranks[0].shards, *ranks[0].plain])
    cut = sum(shard is not None for shard in ranks[0].shards.values())
    return Split(own, parts, tuple(mesh), {}, {"by torch": cut})


def _on_all_ranks(those: Sequence[Traced]) -> Traced:
    """Of a method as each rank has it: the first rank's graphs, for sizes that all ranks have one for."""
    first = those[0]
    return replace(
        first, graphs={of: one for of, one in first.graphs.items() if all(of in own.graphs for own in those)}
    )


def _rank(
    make: Make, mesh: Sequence[Axis], rank: int, entries: Sequence[EntryJob], like: Sequence[Traced], where: str
) -> _Rank | None:
    """In a copy of this process: a rank's model, traced `like` that of the first; None where torch shares nothing of it
    out."""
    with world(mesh, rank, where) as place:
        model = make(place).eval().requires_grad_(False)
        _refuse_gathered_weights(model, where)
        shared = shared_by_torch(model)
        if not shared:
            return None
        shards = {name: shard_of(name, tensor, mesh, where) for name, tensor in shared.items()}
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        plain = {name: tensor.detach() for name, tensor in tensors.items() if name not in shared}
        for_all = [None in one.graphs for one in like] or [True] * len(entries)
        methods = [traced(model, shared, entry, asked) for entry, asked in zip(entries, for_all, strict=True)]
        for one in methods:
            for graph in one.graphs.values():
                in_own_words(graph.graph, where)
                graph.recompile()
        parameters = frozenset(dict(model.named_parameters()))
        return _Rank(shards, plain, parameters, frozenset(model.state_dict()), methods)


def _refuse_gathered_weights(model: nn.Module, where: str) -> None:
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        raise ModelError(
            "mesh: the model is wrapped by fully_shard, which puts whole weights together in every call",
            where=where,
            expected="weights of which each rank uses its part, as parallelize_module shares them out",
            got="a module of torch.distributed.fsdp",
            fix="leave fully_shard out: what a node has no room for goes to more ranks along tp or pp",
        )


def _by_name(model: nn.Module) -> dict[str, Tensor]:
    """All tensors of a model, tied ones under each of their names."""
    return {name: tensor.detach() for name, tensor in named_tensors(model)}


def _parts(
    whole: nn.Module, values: Mapping[str, Tensor], ranks: Sequence[_Rank], mesh: Sequence[Axis], where: str
) -> dict[str, Part]:
    """The tensors that ranks share out: as torch says, or as the values of the others show."""
    for name in ranks[0].shards:
        if name not in values:
            raise ModelError(
                f"mesh: {name} of the ranks is no part of the whole model's",
                where=where,
                expected="with mesh=None the factory makes the whole model, of which the mesh's has parts",
                got="nothing of that name there",
            )
    kept = {name: tensor for name, tensor in _by_name(whole).items() if name in whole.state_dict()}
    # What torch leaves whole is the whole model's, whatever numbers it was made with.
    same = [name for name, one in ranks[0].plain.items() if name in kept and kept[name].shape == one.shape]
    plain = [{**rank.plain, **{name: kept[name] for name in same}} for rank in ranks]
    shown = shards_shown(kept, plain, mesh, ranks[0].plain.keys() - ranks[0].parameters, where)
    parts = {name: Part(whole_shown(name, values, plain, shard, mesh), shard) for name, shard in shown.items()}
    shards = {name: shard for name, shard in ranks[0].shards.items() if shard is not None}
    return parts | {name: Part(values[name].clone(), shard) for name, shard in shards.items()}


def _holder(values: Mapping[str, Tensor], rank: _Rank, parts: Mapping[str, Part]) -> nn.Module:
    """A module that has rank 0's tensors under their names, and nothing else."""
    own, held = nn.Module(), dict[object, nn.Parameter]()
    for name in (*rank.shards, *rank.plain):
        part = parts.get(name)
        if part is not None:
            value = part_of(part.whole, part.shard, 0).clone()
        else:
            value = values[name] if name in values else rank.plain[name]
        module, (*path, last) = own, name.split(".")
        for step in path:
            if step not in module._modules:
                module.add_module(step, nn.Module())
            module = module.get_submodule(step)
        if name in rank.parameters:
            # Tied ones that are cut alike are one here, as in the whole model.
            whole = values.get(name)
            memory = name if whole is None or not whole.nbytes else (whole.data_ptr(), whole.shape, whole.stride())
            tied = (memory, part and part.shard)
            module.register_parameter(last, held.setdefault(tied, nn.Parameter(value, requires_grad=False)))
        else:
            module.register_buffer(last, value, persistent=name in rank.kept)
    return own.eval()


# ---- another process -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Refused:
    """Why a copy has not come to its end."""

    kind: type[AotairError]
    what: str
    words: Mapping[str, str]


def _in_a_copy(work: Callable[[], T], where: str) -> T:
    """What some work gives in a copy of this process, which keeps nothing of it. Raises what it raises."""
    with quiet_torch(), copy_at_work(lambda: (_tried(work, where),)) as copy:
        answer = copy.answer()
    if answer is None:
        raise ModelError(
            "mesh: the process that made the model of a rank has ended, or could not hand over what it computes",
            where=where,
            fix="let the factory not end its process, and return what pickle can hand over: tensors, and records of "
            "modules that can be imported",
        )
    (found,) = answer
    if isinstance(found, _Refused):
        raise found.kind(found.what, **found.words)
    made: T = found
    return made


def _tried(work: Callable[[], T], where: str) -> T | _Refused:
    try:
        return work()
    except AotairError as error:
        words = {name: getattr(error, name) for name in ("where", "expected", "got", "fix")}
        return _Refused(type(error), error.what, words)
    except (Exception, SystemExit) as error:
        text = f"mesh: the model of a rank fails: {type(error).__name__}: {error}"
        return _Refused(ModelError, text, {"where": where})
