"""A model that shares itself out: its factory is called for each rank with a mesh, and what is found there is compared
with the whole model, which the same factory makes without one. Where torch does it (`parallelize_module`), its tensors
say how they are cut, and what the rank computes is traced."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from aotair_runtime.artifact.checkpoint import same_bytes
from aotair_runtime.format.mesh import coordinates, joined, part_of, ranks_of
from aotair_runtime.format.schema import Axis, Shard

from ..errors import ModelError
from ..recipe.entry import EntryJob
from .agreed import agreed, cut_of
from .placements import keep_local_parts, shard_of, shared_by_torch
from .split import Part, Split
from .traced import Traced, call_traced, traced
from .world import world

_MOST_BLOCKS = 3  # of one dimension, each cut apart: query, key and value in one weight
Make = Callable[[object], nn.Module]


@dataclass(frozen=True)
class _Rank:
    """What a rank's model is: its plain tensors, how torch shares out the others, and what was traced of it there."""

    plain: Mapping[str, Tensor]
    shards: Mapping[str, Shard | None]
    methods: Sequence[Traced]


@contextlib.contextmanager
def shares_itself(
    make: Make, model: nn.Module, mesh: Sequence[Axis], entries: Sequence[EntryJob], where: str
) -> Iterator[Split]:
    """Within, rank 0's model can be exported. `make` is the factory with the mesh as its only argument; `model` the
    whole one, with the weights that the artifact will have. Raises ModelError where a rank's tensor is no part of the
    whole, UnsupportedError where ranks do different things."""
    kept, ranks = _checkpoint(make(None), where), []
    for rank in range(1, ranks_of(mesh)):
        with world(mesh, rank, where) as place:
            ranks.append(_rank(make(place), mesh, entries, where))
    with world(mesh, 0, where) as place:
        own = make(place)
        ranks.insert(0, _rank(own, mesh, entries, where))
        values = _tensors(model, where)
        parts = _parts(kept, values, ranks, mesh, where)
        keep_local_parts(own)
        _put(own, values, parts)
        if ranks[0].methods:
            parts |= _call_traced(own, ranks, mesh, where)
        yield Split(own, parts, tuple(mesh), {}, {"by the model itself": len(parts)})


def _checkpoint(whole: nn.Module, where: str) -> dict[str, Tensor]:
    """The whole model's tensors, but for what no checkpoint has, and each rank may have for itself."""
    return {name: tensor for name, tensor in _tensors(whole, where).items() if name in whole.state_dict()}


def _rank(model: nn.Module, mesh: Sequence[Axis], entries: Sequence[EntryJob], where: str) -> _Rank:
    shared = shared_by_torch(model)
    shards = {name: shard_of(name, tensor, mesh, where) for name, tensor in shared.items()}
    methods = [traced(model.eval().requires_grad_(False), shared, entry) for entry in entries] if shared else []
    return _Rank(_tensors(model, where, but=shared), shards, methods)


def _parts(
    kept: Mapping[str, Tensor],
    values: Mapping[str, Tensor],
    ranks: Sequence[_Rank],
    mesh: Sequence[Axis],
    where: str,
) -> dict[str, Part]:
    """The tensors that ranks share out: as torch says, or as their values show."""
    parts = {}
    for name, shard in ranks[0].shards.items():
        if name not in values:
            raise ModelError(
                f"mesh: {name} of the ranks is no part of the whole model's",
                where=where,
                expected="with mesh=None the factory makes the whole model, of which the mesh's has parts",
                got="nothing of that name there",
            )
        if shard is not None:
            parts[name] = Part(values[name].clone(), shard)
    plain = [_like_the_whole(rank, kept) for rank in ranks]
    shards = _shards(kept, plain, mesh, where)
    return parts | {name: Part(_whole(name, values, plain, shard, mesh), shard) for name, shard in shards.items()}


def _like_the_whole(rank: _Rank, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A rank's plain tensors. In a model that torch shares out, those that it left whole are the whole model's, whatever
    numbers they were made with."""
    if not rank.shards:
        return dict(rank.plain)
    same = {name: kept[name] for name, one in rank.plain.items() if name in kept and kept[name].shape == one.shape}
    return {**rank.plain, **same}


def _call_traced(own: nn.Module, ranks: Sequence[_Rank], mesh: Sequence[Axis], where: str) -> dict[str, Part]:
    """Let rank 0's model call what was traced; gives the numbers that differ from rank to rank."""
    parts = {}
    call_traced(own, ranks[0].methods)
    for number, one in enumerate(ranks[0].methods):
        for place, (shapes, graph) in enumerate(one.graphs.items()):
            module = f"traced_{one.method}_{place}"
            own.add_module(module, graph)
            for name, numbers in agreed([rank.methods[number].graphs[shapes] for rank in ranks], where).items():
                parts[f"{module}.{name}"] = Part(*cut_of(numbers, mesh, where))
    return parts


def _tensors(model: nn.Module, where: str, but: Collection[str] = ()) -> dict[str, Tensor]:
    found = {name: tensor for name, tensor in _named(model) if name not in but}
    for name, tensor in found.items():
        if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
            raise ModelError(
                f"mesh: {name} is a {type(tensor).__name__}, which torch.export does not take",
                where=where,
                expected="plain tensors, those that the rank has",
                fix="keep the local part in a module that calls functional collectives; or leave sharing out to the "
                "recipe: parallel: {PATTERN: STYLE}",
            )
    return {name: tensor.detach() for name, tensor in found.items()}


def _shards(
    whole: Mapping[str, Tensor], ranks: Sequence[Mapping[str, Tensor]], mesh: Sequence[Axis], where: str
) -> dict[str, Shard]:
    """How each tensor of the ranks is cut; nothing for one that all have alike."""
    found: dict[str, Shard] = {}
    for name, mine in ranks[0].items():
        if any(name not in one or one[name].shape != mine.shape for one in ranks):
            raise ModelError(f"mesh: not every rank has a {name} {list(mine.shape)}", where=where)
        values = [one[name] for one in ranks]
        if name in whole and whole[name].shape == mine.shape and same_bytes([whole[name], *values]):
            continue
        if name not in whole and same_bytes(values):
            continue
        fitting = list(_fitting(whole.get(name), values, mesh))
        if len(fitting) > 1 and name in whole:
            raise ModelError(
                f"mesh: how {name} is cut cannot be seen: several ways give these values",
                where=where,
                expected="different numbers, as torch.nn.init.uniform_ makes them; a checkpoint replaces them",
                got="the same number throughout" if len(values[0].unique()) == 1 else "values that repeat",
            )
        shard = fitting[0] if fitting else None
        if shard is None:
            raise ModelError(
                f"mesh: {name} of the ranks is no part of the whole model's",
                where=where,
                expected="with mesh=None the factory makes the whole model, and with a mesh the same numbers in parts: "
                "equal pieces of one dimension, in the order of the ranks along one axis",
                got=f"{list(mine.shape)} on each rank, {list(whole[name].shape) if name in whole else 'nothing'} there",
                fix="cut what is made alike on every rank, tensor.chunk(ranks)[rank]; what a rank has for itself is a "
                "buffer, with persistent=False",
            )
        found[name] = shard
    return found


def _fitting(whole: Tensor | None, values: Sequence[Tensor], mesh: Sequence[Axis]) -> Iterator[Shard]:
    """The ways to cut the whole that give each rank its value; without a whole, one behind the other."""
    places = [coordinates(mesh, rank) for rank in range(len(values))]
    for number, axis in enumerate(mesh):
        along = [values[next(r for r, p in enumerate(places) if p[number] == place)] for place in range(axis.size)]
        if not all(same_bytes((along[place[number]], value)) for place, value in zip(places, values)):
            continue
        for dim in range(values[0].dim()):
            for blocks in range(1, _MOST_BLOCKS + 1 if whole is not None else 2):
                shard = Shard(number, dim, axis.size, blocks)
                if values[0].shape[dim] % blocks:
                    continue
                made = joined(along, shard)
                if whole is None or (made.shape == whole.shape and same_bytes((made, whole))):
                    yield shard


def _whole(
    name: str, values: Mapping[str, Tensor], ranks: Sequence[Mapping[str, Tensor]], shard: Shard, mesh: Sequence[Axis]
) -> Tensor:
    """The whole tensor with the weights that the artifact will have: the model's, or what the ranks alone have."""
    step = ranks_of(mesh[shard.axis + 1 :])
    made = joined([ranks[place * step][name] for place in range(shard.parts)], shard)
    return values[name].clone() if name in values and values[name].shape == made.shape else made


def _put(own: nn.Module, values: Mapping[str, Tensor], parts: Mapping[str, Part]) -> None:
    """Give rank 0's model its parts of the weights that the artifact will have."""
    for name, tensor in _named(own):
        value = part_of(parts[name].whole, parts[name].shard, 0) if name in parts else values.get(name)
        if value is not None and value.shape == tensor.shape:
            tensor.data = value.clone() if name in parts else value
    own.eval().requires_grad_(False)


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
