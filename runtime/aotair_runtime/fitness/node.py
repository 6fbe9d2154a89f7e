"""What does this node have: torch, devices with their drivers, memory, a processor?"""

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..devices import KINDS, Device, open_device
from ..devices.onednn_library import library, why_none
from ..devices.onednn_product import has_kernels
from ..errors import AotairError
from ..format.text import table
from ..steps.library import level
from ..steps.library import why_none as why_no_kernels

_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
_NVIDIA = Path("/proc/driver/nvidia/version")
_ASCEND = Path("/usr/local/Ascend/driver/version.info")


@dataclass(frozen=True)
class Found:
    """A device, or why there is none of its kind: then `problem` says it. Bytes of memory, and what is left of the
    streams and events that a process may have (None: no known limit, or not known)."""

    device: str
    name: str = ""
    package: str = ""
    driver: str = ""
    toolkit: str = ""
    total: int | None = None
    free: int | None = None
    streams: int | None = None
    events: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class Node:
    """`threads`: those that torch computes with; `emulated`: dtypes that the processor computes through others;
    `onednn`: the version of the library that products with packed weights call, empty where that is torch's own;
    `kernels`: the instructions that `aotair-kernels` uses, empty where it is not there."""

    python: str
    torch: str
    system: str
    instruction_set: str
    cores: int
    threads: int
    emulated: tuple[str, ...]
    onednn: str
    kernels: str
    memory: int
    available: int
    devices: tuple[Found, ...]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        rows = [
            ["torch", f"{self.torch}, Python {self.python}"],
            ["system", self.system],
            ["processor", f"{self.instruction_set}, {self.cores} cores, {self.threads} threads"],
            ["computed through float32", ", ".join(self.emulated) or "nothing"],
            ["oneDNN", self.onednn or f"torch's own ({why_none() or 'the library has no fast kernels here'})"],
            ["small ops", f"aotair-kernels, {self.kernels}" if self.kernels else f"torch's own ({why_no_kernels()})"],
            ["memory", f"{self.available:,} of {self.memory:,} bytes available"],
        ]
        rows += [row for found in self.devices for row in _rows(found)]
        width = max(len(row[1]) for row in rows)
        return table(["this node", "".ljust(width)], [[name, text.ljust(width)] for name, text in rows])


def this_node() -> Node:
    """What is there now. Devices are opened for it, as a load opens them."""
    return Node(
        platform.python_version(),
        torch.__version__,
        platform.platform(),
        instruction_set(),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        torch.get_num_threads(),
        tuple(sorted(emulated())),
        _onednn(),
        level(),
        open_device("cpu").total(),
        available_memory(),
        tuple(found for kind in KINDS if kind != "cpu" for found in _devices(kind)),
    )


def _onednn() -> str:
    found = library()
    return ".".join(map(str, found.version)) if found is not None and has_kernels(torch.float32) else ""


def instruction_set() -> str:
    """The widest vector instructions that torch's kernels use here."""
    return str(torch.backends.cpu.get_cpu_capability())


def emulated() -> frozenset[str]:
    """The dtypes for whose matrix products oneDNN has no kernels on this processor."""
    ops, there = torch.ops.mkldnn, torch.backends.mkldnn.is_available()
    asked = {"bfloat16": "_is_mkldnn_bf16_supported", "float16": "_is_mkldnn_fp16_supported"}
    return frozenset(kind for kind, ask in asked.items() if not (there and hasattr(ops, ask) and getattr(ops, ask)()))


def available_memory() -> int:
    """The bytes of the host's memory that may still be taken: by the system, and by the limit of the group that this
    process is in, where that is less."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _read(_MEMORY), re.MULTILINE)
    available = int(found[1]) * 1024 if found else open_device("cpu").total()
    most, used = _read(_GROUP / "memory.max").strip(), _read(_GROUP / "memory.current").strip()
    if most.isdecimal() and used.isdecimal():
        available = min(available, max(0, int(most) - int(used)))
    return available


# ---- devices ---------------------------------------------------------------------------------------------------------


def opened(name: str) -> Device | str:
    """A device, or why it cannot be opened."""
    try:
        return open_device(name)
    except AotairError as error:
        return f"{error.what}: {error.got}" if error.got else error.what
    except (RuntimeError, OSError, ImportError) as error:  # a driver that does not answer, a library that is none
        return (str(error) or type(error).__name__).splitlines()[0][:200]


def _devices(kind: str) -> Iterator[Found]:
    first = opened(kind)
    if isinstance(first, str):
        yield Found(kind, problem=first)
        return
    api = getattr(torch, kind)
    for number in range(api.device_count()):
        device = opened(f"{kind}:{number}")
        yield Found(f"{kind}:{number}", problem=device) if isinstance(device, str) else _found(device)


def _found(device: Device) -> Found:
    streams, events = device.limits.streams, device.limits.events
    return Found(
        str(device.torch_device),
        device.name,
        device.vendor_version,
        _driver(device.kind),
        _cann() if device.kind == "npu" else f"CUDA {torch.version.cuda}",
        device.total(),
        device.free(),
        None if streams is None else streams - device.usage.streams,
        None if events is None else events - device.usage.events,
    )


def _driver(kind: str) -> str:
    text = _read(_ASCEND if kind == "npu" else _NVIDIA)
    found = re.search(r"^[Vv]ersion\s*=\s*(\S+)" if kind == "npu" else r"Kernel Module\D*([\d.]+)", text, re.MULTILINE)
    return found[1] if found else ""


def _cann() -> str:
    ask = getattr(getattr(getattr(torch, "npu", None), "utils", None), "get_cann_version", None)
    try:
        return f"CANN {ask()}" if ask is not None else ""
    except (RuntimeError, AttributeError):  # older than the question
        return ""


def _rows(found: Found) -> Iterator[list[str]]:
    if found.problem:
        yield [found.device, f"none: {found.problem}"]
        return
    yield [found.device, ", ".join(filter(None, (found.name, found.package and f"package {found.package}")))]
    yield ["  driver", ", ".join(filter(None, (found.driver, found.toolkit))) or "not known"]
    yield ["  memory", f"{found.free:,} of {found.total:,} bytes free"]
    left = "no known limit" if found.streams is None else f"{found.streams:,} streams, {found.events:,} events left"
    yield ["  graphs", left]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
