"""Which weights does each kind of device keep in a form of its own, and what do they take there? Known without one, so
that a build can promise what a load takes."""

from collections.abc import Iterable, Sequence

import torch

from ..format.packed import CONVOLUTION, needs_packed
from . import int4, int8_rows, nz, onednn, onednn_convolution
from .onednn_convolution import Shape


def packs(device: str, op: str, kind: torch.dtype) -> bool:
    """Whether a device of that kind packs a weight of a dtype for an op: in one form, whatever else reads it."""
    if device == "cpu" and op == CONVOLUTION:
        return onednn_convolution.packs(kind)
    if device == "cpu" and op == int8_rows.PACKED:
        return kind == torch.int8
    if device == "cpu":
        return kind == torch.uint8 if needs_packed(device, op) else onednn.packs(op, kind)
    return device == "npu" and op not in (CONVOLUTION, "aten::linear", int8_rows.PACKED) and nz.packs(kind)


def packed_bytes(device: str, op: str, shape: Sequence[int], kind: torch.dtype) -> int:
    """What a weight that is packed for an op takes; that of convolutions: see `convolution_bytes`."""
    if device == "npu":
        return nz.packed_bytes(shape, kind)
    if op == int8_rows.PACKED:
        return int8_rows.packed_bytes(shape)
    return int4.packed_bytes(shape, kind) if kind == torch.uint8 else onednn.packed_bytes(shape, kind)


def convolution_bytes(shapes: Iterable[Shape]) -> int:
    """What one weight takes that the CPU packs for convolutions of these sizes."""
    return onednn_convolution.packed_bytes(shapes)
