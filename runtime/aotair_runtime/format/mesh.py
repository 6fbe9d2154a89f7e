"""Which part of a whole tensor does a rank have, and where does the rank lie in the mesh?"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import torch

from .schema import Axis, Constant, Cut, GroupArg, Program, Shard, Stored

# By namespace: the ops that need other ranks, and the argument that names these.
COLLECTIVES = {
    "air": (
        "group",
        (
            *("all_reduce", "all_reduce_", "all_gather", "reduce_scatter", "all_to_all", "stage_input", "stage_output"),
            *("moe_distribute_dispatch", "moe_distribute_combine"),
        ),
    ),
    "npu": ("hcom", ("npu_mm_all_reduce_base", "npu_mm_reduce_scatter_base", "npu_all_gather_base_mm")),
}


def group_argument(op: str) -> str | None:
    """The argument that names ranks of an op called `namespace::name.overload`; None where it needs no others."""
    namespace, _, name = op.partition("::")
    argument, names = COLLECTIVES.get(namespace, ("", ()))
    return argument if name.partition(".")[0] in names else None


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


def replica_of(mesh: Sequence[Axis], own_inputs: Collection[int], rank: int) -> tuple[int, ...]:
    """The rank's place along the axes of those numbers: ranks of the same place are called with the same inputs."""
    return tuple(place for number, place in enumerate(coordinates(mesh, rank)) if number in own_inputs)


def spoken_axes(program: Program) -> frozenset[int]:
    """The axes along which the ranks meet in calls."""
    args = (arg for item in program.instructions for arg in (*item.args, *(value for _, value in item.kwargs)))
    return frozenset(arg.axis for arg in args if isinstance(arg, GroupArg))


def mesh_text(mesh: Sequence[Axis]) -> str:
    """The mesh as people read it: `dp=2, tp=4`; "1 rank" where there is none."""
    return ", ".join(f"{axis.name}={axis.size}" for axis in mesh) or "1 rank"


def mesh_name(mesh: Sequence[Axis]) -> str:
    """The same as the name of a folder."""
    return mesh_text(mesh).replace(" ", "_")


def sizes_of(mesh: Sequence[Axis]) -> dict[str, int]:
    """The numbers of ranks by axis, as recipes and `load(mesh=…)` have them."""
    return {axis.name: axis.size for axis in mesh}


def meshes_text(meshes: Iterable[Sequence[Axis]]) -> str:
    """Several of them: `1 rank; tp=2; tp=4`."""
    return "; ".join(map(mesh_text, meshes))


def cuts_of(shard: Shard) -> tuple[Cut, ...]:
    """How a tensor is cut, and then each part."""
    return (shard,) if shard.again is None else (shard, shard.again)


def again(shard: Shard, cut: Cut) -> Shard:
    """Each of the parts cut again."""
    return replace(shard, again=Cut(cut.axis, cut.dim, cut.parts, cut.blocks))


def within(shard: Shard) -> Shard | None:
    """How one of the parts is cut again, if it is."""
    cut = shard.again
    return None if cut is None else Shard(cut.axis, cut.dim, cut.parts, cut.blocks)


def parts_of(shard: Shard) -> int:
    """How many parts there are in all."""
    return math.prod(cut.parts for cut in cuts_of(shard))


def part_number(shard: Shard, mesh: Sequence[Axis], rank: int) -> int:
    """Which of a tensor's parts a rank has; those of a part that is cut again come one after the other."""
    number, places = 0, coordinates(mesh, rank)
    for cut in cuts_of(shard):
        number = number * cut.parts + places[cut.axis] * cut.parts // mesh[cut.axis].size
    return number


def whole_shape(constant: Constant) -> tuple[int, ...]:
    """The shape of the tensor in the weights file and in a checkpoint."""
    sizes = list(constant.shape)
    for cut in () if constant.shard is None else cuts_of(constant.shard):
        sizes[cut.dim] *= cut.parts
    return tuple(sizes)


def stored_tensors(program: Program) -> Sequence[Stored]:
    """What the weights file holds: the program's constants, whole, and those of programs for other meshes."""
    if program.beside.meshes:
        return program.beside.stored
    return [Stored(constant.name, constant.dtype, whole_shape(constant)) for constant in program.constants]


def part_of(whole: torch.Tensor, shard: Shard, number: int) -> torch.Tensor:
    """One of the parts of a tensor: a view of it where the parts lie one after the other, else a copy."""
    outer, inner = divmod(number, 1 if shard.again is None else shard.again.parts)
    part = _part(whole, shard, outer)
    return part if shard.again is None else _part(part, shard.again, inner)


def _part(whole: torch.Tensor, cut: Cut, number: int) -> torch.Tensor:
    size = whole.shape[cut.dim] // (cut.blocks * cut.parts)
    parts = whole.unflatten(cut.dim, (cut.blocks, cut.parts, size)).select(cut.dim + 1, number)
    part: torch.Tensor = parts.flatten(cut.dim, cut.dim + 1).contiguous()
    return part


def joined(parts: Sequence[torch.Tensor], shard: Shard) -> torch.Tensor:
    """The whole tensor of which these are the parts, in order."""
    if shard.again is not None:
        step = shard.again.parts
        parts = [_joined(parts[place : place + step], shard.again) for place in range(0, len(parts), step)]
    return _joined(parts, shard)


def _joined(parts: Sequence[torch.Tensor], cut: Cut) -> torch.Tensor:
    blocks = [part.unflatten(cut.dim, (cut.blocks, part.shape[cut.dim] // cut.blocks)) for part in parts]
    return torch.stack(blocks, dim=cut.dim + 1).flatten(cut.dim, cut.dim + 2)


def of_rank(whole: torch.Tensor, constant: Constant, mesh: Sequence[Axis], rank: int) -> torch.Tensor:
    """What a rank has of a whole tensor that stands for a constant."""
    if constant.shard is None:
        return whole
    return part_of(whole, constant.shard, part_number(constant.shard, mesh, rank))
