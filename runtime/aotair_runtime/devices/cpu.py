"""The CPU: memory is host memory, and a graph is the bound calls themselves."""

import ctypes
import os
from collections.abc import Callable, Sequence

import torch

from ..format.packed import CONVOLUTION, needs_packed
from . import forms, int4, int8_rows, onednn, onednn_convolution, zeros
from .base import NOTHING, Bytes, Limits, Packed, Usage
from .host_call import HostCall
from .timers import HostTimer

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None


class LaunchList:
    """Bound calls; a replay makes them in order."""

    def __init__(self, run: Callable[[], object], updated: Sequence[HostCall]):
        self.replay = run
        self._updated = updated

    def replay_with(self, lists: Sequence[list[int]]) -> None:
        for call in self._updated:
            call.set(lists)
        self.replay()

    def reset(self) -> None:
        del self.replay


class HostSpace:
    """An arena; kernels that allocate take ordinary memory, and there are no streams."""

    def __init__(self, nbytes: int):
        self.arena = zeros.memory(nbytes)

    def warm_up(self, run: Callable[[], object]) -> None:
        """Nothing to warm up: the first replay is as good as any."""

    def capture(self, run: Callable[[], object], updated: Sequence[HostCall] = (), lists: object = ()) -> LaunchList:
        return LaunchList(run, updated)

    def grouped(self, call: HostCall) -> None:
        call()

    def switch(self, *_: int) -> None:
        """The order of the program is a legal order of its streams."""

    record = wait = switch

    def bytes(self) -> Bytes:
        return Bytes(self.arena.nbytes, self.arena.nbytes)

    def close(self) -> None:
        self.arena = NOTHING


class CPU:
    kind = "cpu"
    is_host = True
    torch_device = torch.device("cpu")
    name = vendor_version = ""
    limits = Limits()
    space_cost = Usage()
    concurrent = False

    def __init__(self) -> None:
        self.usage = Usage()

    def place(self, constants: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(constants)

    def copies(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return zeros.copies(tensors)

    def packed(self, weight: torch.Tensor, op: str) -> Packed | None:
        if not forms.packs(self.kind, op, weight.dtype):
            return None
        if op == CONVOLUTION:
            return onednn_convolution.packed(weight)
        if op == int8_rows.PACKED:
            return int8_rows.packed(weight)
        return int4.packed(weight) if needs_packed(self.kind, op) else onednn.packed(weight)

    def held(self, tensors: Sequence[torch.Tensor]) -> Bytes:
        nbytes = sum(tensor.nbytes for tensor in tensors)
        return Bytes(nbytes, nbytes)

    def space(self, nbytes: int, fresh: int = 0) -> HostSpace:
        return HostSpace(nbytes)

    def stream(self) -> int:
        return 0

    def follow(self, stream: int) -> None:
        """There is one stream."""

    def synchronize(self) -> None:
        """Calls return when their work is done."""

    def timer(self) -> HostTimer:
        return HostTimer()

    def bytes(self) -> Bytes:
        return Bytes(0, 0)

    def total(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def free(self) -> None:
        """Weights are mapped, and the system takes pages from whoever does not use them."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError) or "can't allocate memory" in str(error)

    def trim(self) -> None:
        """GNU's allocator keeps large blocks that were freed: packed weights, and those that a reload set aside."""
        if _trim is not None:
            _trim(0)
