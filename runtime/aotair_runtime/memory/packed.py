"""What do the constants take that a device packs for its kernels?"""

from collections.abc import Iterator

from ..devices import forms
from ..devices.onednn_convolution import Shape, shape_of
from ..format.packed import CONVOLUTION, NEEDED, calls, only_packed, packed_constants, read_packed
from ..format.schema import Program, TensorArg
from ..format.torch_names import dtype


def packed_bytes(program: Program, kind: str, pack_weights: bool) -> dict[int, int]:
    """What packed constants take on a kind of device, by number, beside those in the file."""
    found = dict[int, int]()
    for number, op in packed_constants(program):
        constant = program.constants[number]
        if not (pack_weights or op in NEEDED) or not forms.packs(kind, op, dtype(constant.dtype)):
            continue
        if op == CONVOLUTION:
            found[number] = forms.convolution_bytes(_convolutions(program, number))
        else:
            found[number] = forms.packed_bytes(kind, constant.shape, dtype(constant.dtype))
    return found


def plain_elsewhere(program: Program, kind: str, pack_weights: bool) -> frozenset[int]:
    """The constants that lie on the host, where the device has them packed alone."""
    if kind == "cpu" or not pack_weights:
        return frozenset()
    return only_packed(program, lambda number, op: forms.packs(kind, op, dtype(program.constants[number].dtype)))


def _convolutions(program: Program, number: int) -> Iterator[Shape]:
    """The sizes of the convolutions that read a constant packed."""
    buckets = (bucket for entry in program.entry_points for bucket in entry.buckets)
    for bucket, item in calls(program, buckets):
        if not any(bucket.tensors[read].index == number for read in read_packed(item, bucket)):
            continue
        if program.ops[item.op].name != CONVOLUTION:
            continue
        x, weight = (
            program.layouts[bucket.tensors[arg.index].layout] for arg in item.args[:2] if isinstance(arg, TensorArg)
        )
        shape = shape_of(x.shape, weight.shape, item.args[3:], dtype(weight.dtype))
        if shape is not None:
            yield shape
