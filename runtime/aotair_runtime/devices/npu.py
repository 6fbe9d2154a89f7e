"""Ascend NPUs, through torch_npu."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch

from ..errors import RequirementError
from .accelerator import Accelerator
from .base import Gate, Limits
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
        self._calls = torch_npu._C
        self.version: str = torch_npu.__version__
        self.api: ModuleType = torch.npu  # type: ignore[attr-defined]  # torch_npu puts it there
        self.updates = _Updates(self._calls, self.api.ExternalEvent)

    def new_graph(self) -> Unfinished:
        graph: Unfinished = self.api.NPUGraph()
        return graph

    def stream_number(self, index: int) -> int:
        number: int = self._calls._npu_getCurrentRawStream(index)
        return number

    def release_pool(self, index: int, pool: tuple[int, int]) -> None:
        self._calls._npu_releasePool(index, pool)

    def stop_allocating(self, index: int, pool: tuple[int, int]) -> None:
        self._calls._npu_endAllocateToPool(index, pool)


class NPU(Accelerator):
    """NPU number `index`; raises RequirementError where torch_npu or the device is missing."""

    def __init__(self, index: int):
        vendor = _Vendor()
        if index >= vendor.api.device_count():
            raise RequirementError(f"this node has no NPU {index}", got=f"{vendor.api.device_count()} NPUs")
        super().__init__(vendor, index)
