"""Which part of a whole tensor does a rank have, and where does the rank lie in the mesh?"""

import math
from collections.abc import Collection, Sequence

import torch

from .schema import Axis, Constant, GroupArg, Program, Shard

COLLECTIVES = ("all_reduce", "all_reduce_", "all_gather", "reduce_scatter", "all_to_all")  # of the namespace air


def is_collective(op: str) -> bool:
    """Whether an op of that name, `namespace::name.overload`, needs other ranks."""
    namespace, _, name = op.partition("::")
    return namespace == "air" and name.partition(".")[0] in COLLECTIVES


def ranks_of(mesh: Sequence[Axis]) -> int:
    """How many ranks run a program together."""
    return math.prod(axis.size for axis in mesh)


def coordinates(mesh: Sequence[Axis], rank: int) -> tuple[int, ...]:
    """The rank's place along each axis; the last axis varies fastest from rank to rank."""
    found = []
    for axis in reversed(mesh):
        rank, place = divmod(rank, axis.size)
        found.append(place)
    return tuple(reversed(found))


def neighbours(mesh: Sequence[Axis], number: int) -> list[list[int]]:
    """The ranks of each group along the axis of that number: those that differ there alone, in order."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(ranks_of(mesh)):
        place = coordinates(mesh, rank)
        groups.setdefault((*place[:number], *place[number + 1 :]), []).append(rank)
    return list(groups.values())


def partners(mesh: Sequence[Axis], axes: Collection[int], rank: int) -> list[int]:
    """The ranks that differ from this one along some of these axes alone, in order: who makes each call with it."""
    own = coordinates(mesh, rank)
    fixed = [number for number in range(len(mesh)) if number not in axes]
    places = [coordinates(mesh, other) for other in range(ranks_of(mesh))]
    return [other for other, place in enumerate(places) if all(place[n] == own[n] for n in fixed)]


def spoken_axes(program: Program) -> frozenset[int]:
    """The axes along which the ranks meet in calls."""
    args = (arg for item in program.instructions for arg in item.args)
    return frozenset(arg.axis for arg in args if isinstance(arg, GroupArg))


def mesh_text(mesh: Sequence[Axis]) -> str:
    """The mesh as people read it: `dp=2, tp=4`; "1 rank" where there is none."""
    return ", ".join(f"{axis.name}={axis.size}" for axis in mesh) or "1 rank"


def part_number(shard: Shard, mesh: Sequence[Axis], rank: int) -> int:
    """Which of a tensor's parts a rank has."""
    return coordinates(mesh, rank)[shard.axis] * shard.parts // mesh[shard.axis].size


def whole_shape(constant: Constant) -> tuple[int, ...]:
    """The shape of the tensor in the weights file and in a checkpoint."""
    if (shard := constant.shard) is None:
        return constant.shape
    sizes = list(constant.shape)
    sizes[shard.dim] *= shard.parts
    return tuple(sizes)


def part_of(whole: torch.Tensor, shard: Shard, number: int) -> torch.Tensor:
    """One of the parts of a tensor: a view of it where the parts lie one after the other, else a copy."""
    size = whole.shape[shard.dim] // (shard.blocks * shard.parts)
    cut = whole.unflatten(shard.dim, (shard.blocks, shard.parts, size)).select(shard.dim + 1, number)
    part: torch.Tensor = cut.flatten(shard.dim, shard.dim + 1).contiguous()
    return part


def joined(parts: Sequence[torch.Tensor], shard: Shard) -> torch.Tensor:
    """The whole tensor of which these are the parts, in order."""
    cut = [part.unflatten(shard.dim, (shard.blocks, part.shape[shard.dim] // shard.blocks)) for part in parts]
    return torch.stack(cut, dim=shard.dim + 1).flatten(shard.dim, shard.dim + 2)


def of_rank(whole: torch.Tensor, constant: Constant, mesh: Sequence[Axis], rank: int) -> torch.Tensor:
    """What a rank has of a whole tensor that stands for a constant."""
    if constant.shard is None:
        return whole
    return part_of(whole, constant.shard, part_number(constant.shard, mesh, rank))
