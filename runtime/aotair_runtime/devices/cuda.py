"""NVIDIA GPUs, through torch.cuda."""

from datetime import timedelta
from types import ModuleType

import torch
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import Store

from ..errors import RequirementError
from .accelerator import Accelerator
from .base import Limits
from .updates import Updates
from .vendor import Unfinished


class _Vendor:
    kind = "cuda"
    api: ModuleType = torch.cuda
    limits = Limits()
    version = torch.version.cuda or ""
    updates: Updates | None = None  # kernels take lengths from the device's memory

    def new_graph(self) -> Unfinished:
        return torch.cuda.CUDAGraph()

    def stream_number(self, index: int) -> int:
        return torch._C._cuda_getCurrentRawStream(index)

    def release_pool(self, index: int, pool: tuple[int, int]) -> None:
        torch._C._cuda_releasePool(index, pool)

    def stop_allocating(self, index: int, pool: tuple[int, int]) -> None:
        torch._C._cuda_endAllocateToPool(index, pool)


def connect(store: Store, rank: int, size: int, timeout: timedelta) -> tuple[object, None]:
    """This process's end of a connection by NCCL; no kernel knows it by a name."""
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return c10d.ProcessGroupNCCL(store, rank, size, options), None


class CUDA(Accelerator):
    """GPU number `index`; raises RequirementError where torch has no CUDA or the device is missing."""

    def __init__(self, index: int):
        if index >= torch.cuda.device_count():
            raise RequirementError(
                f"this node has no CUDA device {index}",
                got=f"{torch.cuda.device_count()} devices, torch {torch.__version__}",
            )
        super().__init__(_Vendor(), index)
