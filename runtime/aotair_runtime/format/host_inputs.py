"""Host inputs: lists of ints that a call brings and that kernels take as host arguments, not as tensors."""

from collections.abc import Sequence

from ..errors import MalformedError
from .schema import EntryPoint, HostArg, Input, Instruction, Program
from .sizes import evaluate


def inputs_as_arguments(program: Program, entry: EntryPoint) -> tuple[int, ...]:
    """The inputs that instructions of the entry point take as lists, by position."""
    found: set[int] = set()
    for bucket in entry.buckets:
        if bucket.updated:
            found.update(*(positions(program.instructions[number]) for number in bucket.code))
    return tuple(sorted(found))


def positions(item: Instruction) -> list[int]:
    """The inputs that an instruction takes as lists."""
    return [arg.input for _, arg in item.kwargs if isinstance(arg, HostArg)]


def legal_arguments(program: Program, entry: EntryPoint, sizes: Sequence[int]) -> list[list[int]]:
    """Lists of the lowest legal value for a bucket, by the number of each list input."""
    found = []
    for position in inputs_as_arguments(program, entry):
        spec = entry.inputs[position]
        found.append([int(legal_range(spec)[0])] * evaluate(spec.shape[0], sizes))
    return found


def legal_range(spec: Input) -> tuple[float, float]:
    """The legal values of a host input, which has some: the low end inclusive, the high end exclusive."""
    if spec.value_range is None or len(spec.value_range) != 2:
        raise MalformedError(f"the host input {spec.name!r} has no range", got=repr(spec.value_range))
    return spec.value_range[0], spec.value_range[1]


def filling(spec: Input, missing: int) -> list[int]:
    """What fills the padded part of a list."""
    value = legal_range(spec)[0] if spec.pad is None or spec.pad == "any" else spec.pad
    return [int(value)] * missing
