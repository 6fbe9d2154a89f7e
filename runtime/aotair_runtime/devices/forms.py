"""Which weights does each kind of device keep in a form of its own, and what do they take there? Known without one, so
that a build can promise what a load takes."""

from collections.abc import Sequence

import torch

from ..format.packed import NEEDED
from . import int4, nz, onednn


def packs(device: str, op: str, kind: torch.dtype) -> bool:
    """Whether a device of that kind packs a weight of a dtype for an op: in one form, whatever else reads it."""
    if device == "cpu":
        return kind == torch.uint8 if op in NEEDED else onednn.packs(op, kind)
    return device == "npu" and op != "aten::linear" and nz.packs(kind)


def packed_bytes(device: str, shape: Sequence[int], kind: torch.dtype) -> int:
    """What a weight that is packed takes."""
    if device == "npu":
        return nz.packed_bytes(shape, kind)
    return int4.packed_bytes(shape, kind) if kind == torch.uint8 else onednn.packed_bytes(shape, kind)
