"""Which constants does a program want packed? Those that a device may keep in the form that its kernels read."""

from collections.abc import Iterator

from .schema import Arg, Bucket, Form, Instruction, Program, Space, TensorArg

# The ops that read packed constants, and the place of the constant among their arguments.
PLACES = {"aten::linear": 1}


def packed_constants(program: Program) -> tuple[int, ...]:
    """The numbers of the constants that some instruction reads packed, in order."""
    found = {number for entry in program.entry_points for bucket in entry.buckets for number in _named(bucket)}
    return tuple(sorted(found))


def _named(bucket: Bucket) -> Iterator[int]:
    return (item.index for item in bucket.tensors if item.space == Space.PACKED)


def reads_packed(item: Instruction, bucket: Bucket) -> bool:
    """Whether an argument of an instruction is a packed constant."""
    values = (*item.args, *(value for _, value in item.kwargs))
    return any(bucket.tensors[number].space == Space.PACKED for number in tensor_numbers(values))


def is_legal(item: Instruction, bucket: Bucket, op: str) -> bool:
    """Whether an instruction that reads a packed constant is one that may, and reads nothing else so."""
    values = (*item.args, *(value for _, value in item.kwargs))
    read = [number for number in tensor_numbers(values) if bucket.tensors[number].space == Space.PACKED]
    place = PLACES.get(op, len(item.args))
    there = place < len(item.args) and item.args[place] == TensorArg(read[0])
    return len(read) == 1 and there and item.form == Form.COPY


def tensor_numbers(values: tuple[Arg, ...]) -> Iterator[int]:
    """The tensors among arguments, by number."""
    for value in values:
        if isinstance(value, TensorArg):
            yield value.index
        elif isinstance(value, tuple):
            yield from tensor_numbers(value)
