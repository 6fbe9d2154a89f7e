"""The devices that an artifact can run on; each module holds that vendor's calls and nothing else."""

import functools
import importlib

import torch

from ..errors import DeviceError
from .base import Bytes, Device, Graph, GraphSpace, Leading, Limits, Packed, Seen, Usage

__all__ = [
    "KINDS",
    "Bytes",
    "Device",
    "Graph",
    "GraphSpace",
    "Leading",
    "Limits",
    "Packed",
    "Seen",
    "Usage",
    "open_device",
]

KINDS = {"cpu": "CPU", "cuda": "CUDA", "npu": "NPU"}


def open_device(name: str | torch.device) -> Device:
    """The device `name` ("cpu", "npu", "cuda:1", or torch's own word for it): one object per process for each.

    Raises DeviceError where there is no such kind, RequirementError where this node does not have it.
    """
    kind, _, index = str(name).partition(":")
    if (
        not isinstance(name, (str, torch.device))
        or kind not in KINDS
        or (index and not index.isdecimal())
        or (kind == "cpu" and index)
    ):
        raise DeviceError(f"unknown device {name!r}", expected=" or ".join(KINDS) + ", with an index like npu:1")
    return _open(kind, int(index or 0))


@functools.cache
def _open(kind: str, index: int) -> Device:
    module = importlib.import_module(f".{kind}", __name__)
    cls = getattr(module, KINDS[kind])
    device: Device = cls() if kind == "cpu" else cls(index)
    return device
