"""NVIDIA GPUs, through torch.cuda."""

from types import ModuleType

import torch

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


class CUDA(Accelerator):
    """GPU number `index`; raises RequirementError where torch has no CUDA or the device is missing."""

    def __init__(self, index: int):
        if index >= torch.cuda.device_count():
            raise RequirementError(
                f"this node has no CUDA device {index}",
                got=f"{torch.cuda.device_count()} devices, torch {torch.__version__}",
            )
        super().__init__(_Vendor(), index)
