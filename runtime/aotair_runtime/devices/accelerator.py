"""What CUDA and Ascend have in common: torch gives both the same calls, under `torch.cuda` and `torch.npu`.

The vendors' modules (`cuda.py`, `npu.py`) name the calls (`vendor.py`); what they share is written here once.
"""

import threading
from collections.abc import Callable, Sequence

import torch

from ..errors import CaptureError
from .allocators import ALLOCATORS
from .base import NOTHING, Bytes, Graph, Packed, Recording, Stream, Usage
from .host_arguments import HostArguments
from .host_call import HostCall
from .recorder import ANCHOR_COST, Recorder
from .timers import EventTimer
from .vendor import Vendor

_ALIKE = 32  # torch hands out its streams in turn, so many for each priority


class Accelerator:
    """One device of a vendor; the base of `CUDA` and `NPU`."""

    is_host = False
    concurrent = True
    space_cost = ANCHOR_COST

    def __init__(self, vendor: Vendor, index: int):
        self.kind, self.limits, self.vendor_version = vendor.kind, vendor.limits, vendor.version
        self.vendor, self.index = vendor, index
        self.torch_device = torch.device(vendor.kind, index)
        self.name: str = vendor.api.get_device_name(index)
        self.usage = Usage()
        self.capturing = threading.RLock()  # one capture at a time
        self._streams: dict[int, Stream] = {}

    def place(self, constants: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return self.copies(constants)

    def copies(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        block = ALLOCATORS[self.kind].block
        sizes = [-(-tensor.nbytes // block) * block for tensor in tensors]
        if not sum(sizes):
            return tuple(tensor.to(self.torch_device) for tensor in tensors)
        whole = torch.empty(sum(sizes), dtype=torch.uint8, device=self.torch_device)
        blocks = torch.split(whole, sizes)
        parts = [part[: t.nbytes].view(t.dtype).view(t.shape) for part, t in zip(blocks, tensors)]
        for part, tensor in zip(parts, tensors):
            part.copy_(tensor)
        return tuple(parts)

    def packed(self, weight: torch.Tensor, op: str) -> Packed | None:
        return None

    def held(self, tensors: Sequence[torch.Tensor]) -> Bytes:
        addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.nbytes}
        allocated = reserved = 0
        for segment in self.vendor.api.memory_snapshot() if addresses else ():
            start, mine = segment["address"], 0
            for block in segment["blocks"]:
                mine += block["size"] if start in addresses else 0
                start += block["size"]
            allocated += mine
            reserved += segment["total_size"] if mine else 0
        return Bytes(allocated, reserved)

    def use(self, more: Usage) -> None:
        """Count what is taken of the device's limits."""
        self.usage += more

    def space(self, nbytes: int, fresh: int = 0) -> "AcceleratorSpace":
        return AcceleratorSpace(self, nbytes, fresh)

    def stream(self) -> int:
        return self.vendor.stream_number(self.index)

    def follow(self, stream: int) -> None:
        current: Stream = self.vendor.api.current_stream(self.index)
        self._streams.setdefault(self.stream(), current)
        if stream in self._streams:
            current.wait_stream(self._streams[stream])
        else:
            self.synchronize()

    def synchronize(self) -> None:
        self.vendor.api.synchronize(self.index)

    def timer(self) -> EventTimer:
        return EventTimer(self.vendor.api, self.index)

    def bytes(self) -> Bytes:
        api = self.vendor.api
        return Bytes(api.memory_allocated(self.index), api.memory_reserved(self.index))

    def total(self) -> int:
        found: tuple[int, int] = self.vendor.api.mem_get_info(self.index)
        return found[1]

    def free(self) -> int:
        taken = self.bytes()
        found: tuple[int, int] = self.vendor.api.mem_get_info(self.index)
        return found[0] + taken.reserved - taken.allocated

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, torch.OutOfMemoryError)

    def trim(self) -> None:
        self.synchronize()
        self.vendor.api.empty_cache()


class FixedGraph:
    """A recording without host arguments: whatever lists a call brings, there is nothing to replace."""

    __slots__ = ("_graph", "replay")

    def __init__(self, graph: Recording):
        self._graph, self.replay = graph, graph.replay

    def replay_with(self, lists: Sequence[list[int]]) -> None:
        self.replay()

    def reset(self) -> None:
        self._graph.reset()


class AcceleratorSpace:
    """A pool of memory with an arena in it, and the streams that graphs are captured on."""

    def __init__(self, device: Accelerator, nbytes: int, fresh: int):
        self._device, self._vendor, self._fresh = device, device.vendor, fresh
        self._recorder = Recorder(device.vendor, device.index, device.use)
        self._host_arguments = HostArguments(device.vendor, device.index, self._recorder)
        self.streams = {(0, 0): self._recorder.main}  # by number and priority
        self.arena = NOTHING
        self._open(nbytes)

    def warm_up(self, run: Callable[[], object]) -> None:
        with self._recorder.recording():
            run()
        self._recorder.main.synchronize()

    def capture(
        self, run: Callable[[], object], updated: Sequence[HostCall] = (), lists: Sequence[list[int]] = ()
    ) -> Graph:
        with self._device.capturing:
            if not self._recorder.has_pool:
                self._open(None)
            if updated:
                return self._host_arguments.record(run, updated, lists)
            return FixedGraph(self._recorder.record(run))

    def grouped(self, call: HostCall) -> None:
        self._host_arguments.grouped(call)

    def switch(self, stream: int, priority: int) -> None:
        if (stream, priority) not in self.streams:
            self.streams[stream, priority] = self._another_stream(priority)
        self._vendor.api.set_stream(self.streams[stream, priority])

    def record(self, event: int) -> None:
        made = self._recorder.events[event] = self._vendor.api.Event()
        made.record(self._vendor.api.current_stream(self._device.index))

    def wait(self, event: int) -> None:
        self._vendor.api.current_stream(self._device.index).wait_event(self._recorder.events[event])

    def bytes(self) -> Bytes:
        pools = self._recorder.pools
        mine = [s for s in self._vendor.api.memory_snapshot() if tuple(s["segment_pool_id"]) in pools]
        return Bytes(sum(s["allocated_size"] for s in mine), sum(s["total_size"] for s in mine))

    def close(self) -> None:
        self.arena = NOTHING
        self._host_arguments.close()
        self._recorder.close()

    def _open(self, nbytes: int | None) -> None:
        """Take a new pool; with `nbytes`, allocate the arena in it."""
        made = []

        def run() -> None:
            made.append(torch.empty(max(1, nbytes or 1), dtype=torch.uint8, device=self._device.torch_device))
            made[0][:1].zero_()  # an empty graph is not one
            # Free at once, and the pool's from now on: the largest result that an instruction allocates fits there,
            # whatever came before it.
            torch.empty(self._fresh, dtype=torch.uint8, device=self._device.torch_device)

        self._recorder.open_pool(run)
        if nbytes is not None:
            self.arena = made[0][:nbytes]
            with torch.inference_mode():
                self.arena.zero_()  # nothing that lay there before can be read
            self._device.synchronize()

    def _another_stream(self, priority: int) -> Stream:
        for _ in range(_ALIKE):
            stream: Stream = self._vendor.api.Stream(self._device.torch_device, priority=priority)
            if stream not in self.streams.values():
                return stream
        raise CaptureError(f"torch has no more than {_ALIKE} streams", got=f"{len(self.streams)} in use by one bucket")
