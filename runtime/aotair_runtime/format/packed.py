"""Which constants does a program want packed? Those that a device may keep in the form that its kernels read."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .schema import Arg, Bucket, Form, Instruction, Layout, Program, Space, TensorArg


@dataclass(frozen=True)
class Reader:
    """How an op reads packed constants: as its arguments number `places`, of `dims` dimensions, or as the only one of a
    list there; `turned`: also with the last two dimensions swapped. `form` is that of its instructions;
    `needed`: the kind of device whose kernel reads them in no other form, all of them."""

    places: tuple[int, ...]
    form: Form = Form.COPY
    dims: int = 2
    turned: bool = False
    listed: bool = False
    needed: str = ""


CONVOLUTION = "aten::convolution"
# The ops that read packed constants.
READERS: Mapping[str, Reader] = {
    "aten::linear": Reader((1,)),
    CONVOLUTION: Reader((1,), dims=4),
    "aten::_weight_int4pack_mm_for_cpu": Reader((1,), needed="cpu"),
    "aten::mm.out": Reader((1,), Form.OUT, turned=True),
    "aten::addmm.out": Reader((2,), Form.OUT, turned=True),
    "air::quant_matmul.out": Reader((1,), Form.OUT),
    "air::linear_int8.out": Reader((1,), Form.OUT),
    "npu::npu_mm_all_reduce_base": Reader((1,), turned=True),
    "npu::npu_mm_reduce_scatter_base": Reader((1,), turned=True),
    "npu::npu_all_gather_base_mm": Reader((1,), turned=True),
    "npu::npu_quant_matmul": Reader((1,)),
    "npu::npu_grouped_matmul": Reader((1,), dims=3, listed=True),
    "npu::npu_grouped_matmul.List": Reader((1,), dims=3, listed=True),
    "npu::npu_mla_prolog_v3": Reader((1, 2, 4), needed="npu"),
    "npu::npu_mla_prolog_v3_functional": Reader((1, 2, 4), needed="npu"),
}
Packs = Callable[[int, str], bool]  # whether a device packs the constant of that number for that op


def needs_packed(device: str, op: str) -> bool:
    """Whether the kernel of a kind of device for `op` reads these constants in no other form."""
    return device == READERS[op].needed


def packed_constants(program: Program) -> tuple[tuple[int, str], ...]:
    """The numbers of the constants that some instruction reads packed, each with the name of its op, in order."""
    buckets = [bucket for entry in program.entry_points for bucket in entry.buckets if has_packed(bucket)]
    found = {
        (bucket.tensors[number].index, program.ops[item.op].name)
        for bucket, item in calls(program, buckets)
        if program.ops[item.op].name in READERS
        for number in read_packed(item, bucket)
    }
    return tuple(sorted(found))


def only_packed(program: Program, packs: Packs) -> frozenset[int]:
    """The numbers of the constants that are read packed alone, on a device that packs those of `packs`."""
    wanted = {(number, op) for number, op in packed_constants(program) if packs(number, op)}
    plain = {state.constant for state in program.state}
    for bucket, item in calls(program, (bucket for entry in program.entry_points for bucket in entry.buckets)):
        op = program.ops[item.op].name
        values = (*item.args, *(value for _, value in item.kwargs))
        for placement in (bucket.tensors[number] for number in tensor_numbers(values)):
            packed = placement.space == Space.PACKED and (placement.index, op) in wanted
            if placement.space in (Space.CONSTANT, Space.PACKED) and not packed:
                plain.add(placement.index)
    return frozenset(number for number, _ in wanted) - plain


def calls(program: Program, buckets: Iterable[Bucket]) -> Iterator[tuple[Bucket, Instruction]]:
    """The instructions of buckets that call an op."""
    for bucket in buckets:
        for item in (program.instructions[number] for number in bucket.code):
            if not item.is_event:
                yield bucket, item


def has_packed(bucket: Bucket) -> bool:
    """Whether any tensor of a bucket is a packed constant."""
    return any(item.space == Space.PACKED for item in bucket.tensors)


def read_packed(item: Instruction, bucket: Bucket) -> tuple[int, ...]:
    """The packed constants among an instruction's arguments, by their number among the bucket's tensors."""
    values = (*item.args, *(value for _, value in item.kwargs))
    return tuple(number for number in tensor_numbers(values) if bucket.tensors[number].space == Space.PACKED)


def is_legal(item: Instruction, op: str, read: tuple[int, ...], seen: Sequence[Layout]) -> bool:
    """Whether an instruction that reads these packed constants, which it sees so, is one that may."""
    reader = READERS.get(op)
    if reader is None or len(read) != len(reader.places) or item.form != reader.form:
        return False
    if max(reader.places) >= len(item.args):
        return False
    fits = all(len(one.shape) == reader.dims and (reader.turned or one.strides[-1] == 1) for one in seen)
    there = [(TensorArg(number),) if reader.listed else TensorArg(number) for number in read]
    return fits and [item.args[place] for place in reader.places] == there


def tensor_numbers(values: tuple[Arg, ...]) -> Iterator[int]:
    """The tensors among arguments, by number."""
    for value in values:
        if isinstance(value, TensorArg):
            yield value.index
        elif isinstance(value, tuple):
            yield from tensor_numbers(value)
