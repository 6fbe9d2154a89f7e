"""The devices that an artifact can run on; each module holds that vendor's calls and nothing else."""

from ..errors import DeviceError
from .base import Device, Graph
from .cpu import CPU

__all__ = ["CPU", "Device", "Graph", "open_device"]

_KINDS = {"cpu": CPU}


def open_device(name: str) -> Device:
    """The device `name` ("cpu"); raises DeviceError where this runtime has no such kind."""
    kind = name.partition(":")[0]
    if kind not in _KINDS:
        raise DeviceError(f"unknown device {name!r}", expected=" or ".join(_KINDS), got=name)
    return _KINDS[kind]()
