"""Which weights does each kind of device keep in a form of its own, and what do they take there? Known without one, so
that a build can promise what a load takes."""

from collections.abc import Sequence

import torch

from . import nz, onednn


def packs(device: str, op: str, kind: torch.dtype) -> bool:
    """Whether a device of that kind packs a weight of a dtype for an op: in one form, whatever else reads it."""
    if device == "cpu":
        return op == "aten::linear" and onednn.packs(kind)
    return device == "npu" and op != "aten::linear" and nz.packs(kind)


def packed_bytes(device: str, shape: Sequence[int], kind: torch.dtype) -> int:
    """What a weight that is packed takes."""
    return nz.packed_bytes(shape, kind) if device == "npu" else onednn.packed_bytes(tuple(shape), kind)
