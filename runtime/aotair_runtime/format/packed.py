"""Which constants does a program want packed? Those that a device may keep in the form that its kernels read."""

from collections.abc import Iterator

from .schema import Arg, Bucket, Form, Instruction, Program, Space, TensorArg

# The ops that read packed constants, and the place of the constant among their arguments.
PLACES = {"aten::linear": 1, "aten::_weight_int4pack_mm_for_cpu": 1}
# Those that read them in no other form.
NEEDED = frozenset({"aten::_weight_int4pack_mm_for_cpu"})


def packed_constants(program: Program) -> tuple[tuple[int, str], ...]:
    """The numbers of the constants that some instruction reads packed, each with the name of its op, in order."""
    found: set[tuple[int, str]] = set()
    for bucket in (bucket for entry in program.entry_points for bucket in entry.buckets):
        for item in (program.instructions[number] for number in bucket.code):
            if not item.is_event and reads_packed(item, bucket):
                op = program.ops[item.op].name
                (weight,) = tensor_numbers(item.args[PLACES[op] : PLACES[op] + 1])
                found.add((bucket.tensors[weight].index, op))
    return tuple(sorted(found))


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
