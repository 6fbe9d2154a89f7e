"""Which tensors does a rank have, of those in the weights file?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ..errors import MalformedError
from ..format.mesh import of_rank, part_number, parts_of, stored_tensors, within
from ..format.schema import Constant, Program, Stored
from ..format.torch_names import dtype


def constants_of(
    tensors: Mapping[str, torch.Tensor], program: Program, where: str, rank: int
) -> tuple[torch.Tensor, ...]:
    """The program's constants, of which `rank` has its parts. Raises MalformedError where a tensor of the file is not
    what the artifact says."""
    for stored in stored_tensors(program):
        _check(tensors.get(stored.name), stored, where)
    found = []
    for constant, names in zip(program.constants, _names(program), strict=True):
        found.append(_own([tensors[name] for name in names], constant, program, rank))
    return tuple(found)


def in_file(tensors: Mapping[str, torch.Tensor], constants: Sequence[torch.Tensor], program: Program) -> frozenset[int]:
    """The numbers of the constants that lie in the memory of the tensors that they are, or are parts of: a part that
    does not lie in one piece is a copy."""
    pairs = enumerate(zip(constants, _names(program), strict=True))
    return frozenset(
        number for number, (mine, names) in pairs if any(_same_memory(mine, tensors[name]) for name in names)
    )


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _names(program: Program) -> list[tuple[str, ...]]:
    """For each constant the tensors of the file in which it lies."""
    pieces = {item.constant: item.names for item in program.beside.pieces}
    return [pieces.get(number, (constant.name,)) for number, constant in enumerate(program.constants)]


def _check(tensor: torch.Tensor | None, stored: Stored, where: str) -> None:
    if tensor is None or tensor.dtype != dtype(stored.dtype) or tuple(tensor.shape) != stored.shape:
        raise MalformedError(
            f"the weight {ascii(stored.name)[:80]} is not what the program expects",
            where=where,
            expected=f"{stored.dtype}{list(stored.shape)}",
            got="nothing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}",
        )


def _own(wholes: Sequence[torch.Tensor], constant: Constant, program: Program, rank: int) -> torch.Tensor:
    """What the rank has; of a constant in pieces, of which it has one, that alone."""
    shard = constant.shard
    if len(wholes) == 1 or shard is None:
        return of_rank(wholes[0], constant, program.mesh, rank)
    number = part_number(shard, program.mesh, rank) * shard.parts // parts_of(shard)
    return of_rank(wholes[number], replace(constant, shard=within(shard)), program.mesh, rank)
