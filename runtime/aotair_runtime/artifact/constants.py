"""Which tensors does a rank have, of those in the weights file?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ..errors import MalformedError
from ..format.mesh import of_rank, part_number, parts_of, whole_shape, within
from ..format.schema import Constant, Program
from ..format.torch_names import dtype


def constants_of(
    tensors: Mapping[str, torch.Tensor], program: Program, where: str, rank: int
) -> tuple[torch.Tensor, ...]:
    """The program's constants, of which `rank` has its parts. Raises MalformedError where a tensor is not what the
    program expects."""
    held = _names(program)
    found = []
    for constant, names in zip(program.constants, held, strict=True):
        shape = whole_shape(constant) if len(names) == 1 else _piece_shape(constant, len(names))
        wholes = [_checked(tensors.get(name), constant, shape, where) for name in names]
        found.append(_own(wholes, constant, program, rank))
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


def _piece_shape(constant: Constant, count: int) -> tuple[int, ...]:
    whole = whole_shape(constant)
    return (whole[0] // count, *whole[1:])


def _checked(tensor: torch.Tensor | None, constant: Constant, shape: tuple[int, ...], where: str) -> torch.Tensor:
    if tensor is None or tensor.dtype != dtype(constant.dtype) or tuple(tensor.shape) != shape:
        raise MalformedError(
            f"the weight {ascii(constant.name)[:80]} is not what the program expects",
            where=where,
            expected=f"{constant.dtype}{list(shape)}",
            got="nothing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}",
        )
    return tensor


def _own(wholes: Sequence[torch.Tensor], constant: Constant, program: Program, rank: int) -> torch.Tensor:
    """What the rank has; of a constant in pieces, of which it has one, that alone."""
    shard = constant.shard
    if len(wholes) == 1 or shard is None:
        return of_rank(wholes[0], constant, program.mesh, rank)
    number = part_number(shard, program.mesh, rank) * shard.parts // parts_of(shard)
    return of_rank(wholes[number], replace(constant, shard=within(shard)), program.mesh, rank)
