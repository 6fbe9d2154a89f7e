"""Host inputs: lists of ints that a call brings and that kernels take as host arguments, not as tensors."""

from collections.abc import Sequence

from .schema import EntryPoint, HostArg, Instruction, Program


def list_inputs(program: Program, entry: EntryPoint) -> tuple[int, ...]:
    """The inputs that instructions of the entry point take as lists, by position."""
    found: set[int] = set()
    for bucket in entry.buckets:
        if bucket.updated:
            found.update(*(positions(program.instructions[number]) for number in bucket.code))
    return tuple(sorted(found))


def positions(item: Instruction) -> list[int]:
    """The inputs that an instruction takes as lists."""
    return [arg.input for _, arg in item.kwargs if isinstance(arg, HostArg)]


def legal_lists(program: Program, entry: EntryPoint, sizes: Sequence[int]) -> list[list[int]]:
    """Lists of the lowest legal value for a bucket, by the number of each list input."""
    found = []
    for position in list_inputs(program, entry):
        spec, size = entry.inputs[position], entry.inputs[position].shape[0]
        found.append([int(spec.value_range[0])] * (sizes[size[1]] if isinstance(size, tuple) else size))
    return found


def filling(spec, missing: int) -> list[int]:
    """What fills the padded part of a list."""
    value = spec.value_range[0] if spec.pad in (None, "any") else spec.pad
    return [int(value)] * missing
