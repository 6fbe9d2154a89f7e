"""How do ranks share out a tensor of a model that shares itself out? As its values show beside the whole model's."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from torch import Tensor

from aotair_runtime.artifact.checkpoint import same_bytes
from aotair_runtime.format.mesh import coordinates, joined, ranks_of
from aotair_runtime.format.schema import Axis, Shard

from ..errors import ModelError

_MOST_BLOCKS = 3  # of one dimension, each cut apart: query, key and value in one weight


def shards_shown(
    whole: Mapping[str, Tensor],
    ranks: Sequence[Mapping[str, Tensor]],
    mesh: Sequence[Axis],
    buffers: Collection[str],
    where: str,
) -> dict[str, Shard]:
    """How each tensor of the ranks is cut; nothing for one that all have alike. `buffers` are no parameters. Raises
    ModelError where a tensor is no part of the whole model's, or several ways to cut it give these values."""
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
        if len(fitting) > 1 and name in buffers and len({(cut.axis, cut.dim) for cut in fitting}) == 1:
            fitting = fitting[:1]  # an empty cache: what calls write into it shows in the proof whether that is right
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


def whole_shown(
    name: str, values: Mapping[str, Tensor], ranks: Sequence[Mapping[str, Tensor]], shard: Shard, mesh: Sequence[Axis]
) -> Tensor:
    """The whole tensor with the weights that the artifact will have: the model's, or what the ranks alone have."""
    step = ranks_of(mesh[shard.axis + 1 :])
    made = joined([ranks[place * step][name] for place in range(shard.parts)], shard)
    return values[name].clone() if name in values and values[name].shape == made.shape else made
