"""What do the constants take that a device packs for its kernels?"""

from collections import defaultdict

from ..devices import forms
from ..devices.onednn_convolution import Shape, shape_of
from ..format.packed import CONVOLUTION, calls, needs_packed, only_packed, packed_constants, read_packed
from ..format.schema import Program, TensorArg
from ..format.torch_names import dtype


def packed_bytes(program: Program, kind: str, pack_weights: bool) -> dict[int, int]:
    """What packed constants take on a kind of device, by number, beside those in the file."""
    found, convolutions = dict[int, int](), _convolutions(program)
    for number, op in packed_constants(program):
        constant = program.constants[number]
        if number in found:  # one form serves all ops, that of the first
            continue
        if not (pack_weights or needs_packed(kind, op)) or not forms.packs(kind, op, dtype(constant.dtype)):
            continue
        if op == CONVOLUTION:
            found[number] = forms.convolution_bytes(convolutions.get(number, ()))
        else:
            found[number] = forms.packed_bytes(kind, op, constant.shape, dtype(constant.dtype))
    return found


def plain_elsewhere(program: Program, kind: str, pack_weights: bool) -> frozenset[int]:
    """The constants that lie on the host, where the device has them packed alone."""
    if kind == "cpu" or not pack_weights:
        return frozenset()
    return only_packed(program, lambda number, op: forms.packs(kind, op, dtype(program.constants[number].dtype)))


def _convolutions(program: Program) -> dict[int, set[Shape]]:
    """By number of a constant, the sizes of the convolutions that read it packed."""
    found = defaultdict[int, set[Shape]](set)
    buckets = (bucket for entry in program.entry_points for bucket in entry.buckets)
    for bucket, item in calls(program, buckets):
        if program.ops[item.op].name != CONVOLUTION or not (read := read_packed(item, bucket)):
            continue
        tensors = [bucket.tensors[arg.index] for arg in item.args[:2] if isinstance(arg, TensorArg)]
        if len(tensors) < 2:
            continue  # no call of the op, which binding refuses
        x, weight = (program.layouts[tensor.layout] for tensor in tensors)
        shape = shape_of(x.shape, weight.shape, item.args[3:], dtype(weight.dtype))
        if shape is not None:
            found[bucket.tensors[read[0]].index].add(shape)
    return found
