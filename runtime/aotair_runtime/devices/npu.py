"""Ascend NPUs, through torch_npu."""

import importlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
from torch.distributed.distributed_c10d import Store

from ..errors import RequirementError
from .accelerator import Accelerator
from .base import Gate, Limits, Packed
from .nz import NzWeight
from .updates import Updates
from .vendor import Unfinished


class _Updates:
    def __init__(self, calls: Any, gate: Callable[[], Gate]):
        self.lock: AbstractContextManager[object] = threading.Lock()
        self.group_begin, self.group_end = calls._graph_task_group_begin, calls._graph_task_group_end
        self.update_begin, self.update_end = calls._graph_task_update_begin, calls._graph_task_update_end
        self.gate = gate


class _Vendor:
    kind = "npu"
    # A device has about 2,000 streams; a captured graph holds each of its own until it is reset.
    limits = Limits(streams=1800, events=60_000)

    updates: Updates | None

    def __init__(self) -> None:
        try:
            import torch_npu
        except ImportError as error:
            raise RequirementError(
                "this node has no torch_npu", got=str(error), fix="pip install torch_npu, beside CANN"
            ) from error
        self.calls: Any = torch_npu._C
        self.version: str = torch_npu.__version__
        self.api: ModuleType = torch.npu  # type: ignore[attr-defined]  # torch_npu puts it there
        self.updates = _Updates(self.calls, self.api.ExternalEvent)

    def new_graph(self) -> Unfinished:
        graph: Unfinished = self.api.NPUGraph()
        return graph

    def stream_number(self, index: int) -> int:
        number: int = self.calls._npu_getCurrentRawStream(index)
        return number

    def release_pool(self, index: int, pool: tuple[int, int]) -> None:
        self.calls._npu_releasePool(index, pool)

    def stop_allocating(self, index: int, pool: tuple[int, int]) -> None:
        self.calls._npu_endAllocateToPool(index, pool)


_NZ = 29  # CANN's number
_OPTION = "ALLOW_INTERNAL_FORMAT"


class _Casts:
    """Casts to NZ, which torch_npu leaves undone unless an option of the process allows them. `give_back` is the
    device's `trim`."""

    def __init__(self, calls: Any, give_back: Callable[[], None]):
        self._calls, self._ops, self.give_back = calls, torch.ops.npu, give_back

    def empty_nz(self, shape: Sequence[int], kind: torch.dtype, device: torch.device) -> torch.Tensor:
        made: torch.Tensor = self._ops.empty_with_format(list(shape), dtype=kind, device=device, acl_format=_NZ)
        return made

    def to_nz(self, tensor: torch.Tensor) -> torch.Tensor:
        before = self._calls._npu_getOption(_OPTION)
        self._calls._npu_setOption({_OPTION: "enable"})
        try:
            made: torch.Tensor = self._ops.npu_format_cast(tensor, _NZ)
        finally:
            if before != b"enable":
                self._calls._npu_setOption({_OPTION: "disable"})
        if self._ops.get_npu_format(made) != _NZ:
            raise RequirementError(
                "this NPU keeps no weights in the format NZ",
                expected="Atlas A2 or A3",
                fix="load the artifact with pack_weights=False",
            )
        return made

    def copy_whole(self, into: torch.Tensor, tensor: torch.Tensor) -> None:
        self._ops.copy_memory_(into, tensor)  # as many bytes as the storage has, where it is in a private format


def connect(
    store: Store, rank: int, size: int, timeout: timedelta, buffer: int | None, for_experts: bool
) -> tuple[Any, str]:
    """This process's end of a connection by HCCL, made and used once: its communicator comes with the first call, and
    no capture may hold that. And the communicator's name, by which kernels find it that meet other ranks themselves.
    `buffer`: the MiB of each of its two buffers, instead of HCCL_BUFFSIZE. `for_experts`: it is for kernels that
    nothing else may share it with."""
    hccl: Any = importlib.import_module("torch_npu._C._distributed_c10d")
    options = hccl.ProcessGroupHCCL.Options()
    options._timeout = timeout
    if buffer is not None:
        options.hccl_config = {"hccl_buffer_size": buffer}
    made = hccl.ProcessGroupHCCL(store, rank, size, options)
    if not for_experts:
        made.allreduce([torch.zeros(1, device="npu")]).wait()
    return made, made.get_hccl_comm_name(torch.npu.current_device())  # type: ignore[attr-defined]  # torch_npu's


class NPU(Accelerator):
    """NPU number `index`; raises RequirementError where torch_npu or the device is missing."""

    def __init__(self, index: int):
        vendor = _Vendor()
        if index >= vendor.api.device_count():
            raise RequirementError(f"this node has no NPU {index}", got=f"{vendor.api.device_count()} NPUs")
        super().__init__(vendor, index)
        self._casts = _Casts(vendor.calls, self.trim)

    def packed(self, weight: torch.Tensor, op: str) -> Packed:
        return NzWeight(weight, self.torch_device, self._casts)
