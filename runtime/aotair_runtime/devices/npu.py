"""Ascend NPUs, through torch_npu."""

import threading

import torch

from ..errors import RequirementError
from .accelerator import Accelerator
from .base import Limits


class _Updates:
    def __init__(self, calls):
        self.lock = threading.Lock()
        self.group_begin, self.group_end = calls._graph_task_group_begin, calls._graph_task_group_end
        self.update_begin, self.update_end = calls._graph_task_update_begin, calls._graph_task_update_end
        self.gate = torch.npu.ExternalEvent


class _Vendor:
    kind = "npu"
    # A device has about 2,000 streams; a captured graph holds each of its own until it is reset.
    limits = Limits(streams=1800, events=60_000)

    def __init__(self):
        try:
            import torch_npu
        except ImportError as error:
            raise RequirementError(
                "this node has no torch_npu", got=str(error), fix="pip install torch_npu, beside CANN"
            ) from error
        self._calls = torch_npu._C
        self.version = torch_npu.__version__
        self.api = torch.npu
        self.updates = _Updates(self._calls)

    def new_graph(self):
        return torch.npu.NPUGraph()

    def stream_number(self, index: int) -> int:
        return self._calls._npu_getCurrentRawStream(index)

    def release_pool(self, index: int, pool: tuple[int, int]) -> None:
        self._calls._npu_releasePool(index, pool)

    def stop_allocating(self, index: int, pool: tuple[int, int]) -> None:
        self._calls._npu_endAllocateToPool(index, pool)


class NPU(Accelerator):
    """NPU number `index`; raises RequirementError where torch_npu or the device is missing."""

    def __init__(self, index: int):
        vendor = _Vendor()
        if index >= torch.npu.device_count():
            raise RequirementError(f"this node has no NPU {index}", got=f"{torch.npu.device_count()} NPUs")
        super().__init__(vendor, index)
