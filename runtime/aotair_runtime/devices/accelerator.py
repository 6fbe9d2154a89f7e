"""What CUDA and Ascend have in common: torch gives both the same calls, under `torch.cuda` and `torch.npu`.

The vendors' modules (`cuda.py`, `npu.py`) name the calls; how a graph is recorded, and how a failed one is undone, is
written here once.
"""

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Protocol

import torch

from ..errors import CaptureError
from .base import NOTHING, Bytes, Event, Graph, Limits, Recording, Stream, Usage
from .host_call import HostCall
from .updates import Gates, Lane, Node, UpdatedGraph, Updates

_BLOCK = 512  # bytes: how torch aligns what it allocates on a device
_ALIKE = 32  # torch hands out its streams in turn, so many for each priority


class Unfinished(Recording, Protocol):
    """A graph of torch's, to be recorded."""

    def capture_begin(self, *, pool: Any, capture_error_mode: str) -> None:
        """Record from now on; `pool` is what `graph_pool_handle` gave."""

    def capture_end(self) -> None: ...


class Vendor(Protocol):
    """The calls of one vendor that torch names differently."""

    kind: str
    api: ModuleType  # torch.cuda or torch.npu
    limits: Limits
    version: str
    updates: Updates | None  # None: what a capture recorded stays as it is

    def new_graph(self) -> Unfinished: ...

    def stream_number(self, index: int) -> int:
        """The handle of the current stream."""

    def release_pool(self, index: int, pool: tuple[int, int]) -> None:
        """Undo the use of a pool by a graph whose capture did not end."""

    def stop_allocating(self, index: int, pool: tuple[int, int]) -> None:
        """Undo the routing of allocations to a pool whose capture did not begin."""


class Accelerator:
    """One device of a vendor; the base of `CUDA` and `NPU`."""

    concurrent = True
    space_cost = Usage(captures=1, streams=1)

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
        sizes = [-(-tensor.nbytes // _BLOCK) * _BLOCK for tensor in tensors]
        if not sum(sizes):
            return tuple(tensor.to(self.torch_device) for tensor in tensors)
        block = torch.empty(sum(sizes), dtype=torch.uint8, device=self.torch_device)
        blocks = torch.split(block, sizes)
        parts = [part[: t.nbytes].view(t.dtype).view(t.shape) for part, t in zip(blocks, tensors)]
        for part, tensor in zip(parts, tensors):
            part.copy_(tensor)
        return tuple(parts)

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

    def space(self, nbytes: int, fresh: int = 0) -> "GraphSpace":
        return GraphSpace(self, nbytes, fresh)

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


class GraphSpace:
    """A pool of the caching allocator with an arena in it, and the streams that graphs are captured on.

    The allocator binds blocks to the stream of their capture: one stream for all, or nothing would be shared. A pool
    dies with its last graph, so a first small one (the anchor) stays as long as the space.
    """

    def __init__(self, device: Accelerator, nbytes: int, fresh: int):
        self._device, self._vendor, self._fresh = device, device.vendor, fresh
        self._main: Stream = self._vendor.api.Stream(device.torch_device)
        self.streams = {(0, 0): self._main}  # by number and priority
        self._events: dict[int, Event] = {}
        self._pool: tuple[int, int] | None = None
        self._pools: list[tuple[int, int]] = []
        self._anchors: list[Recording] = []
        self._scratch: dict[Stream, torch.Tensor] = {}  # by stream: the largest workspace so far
        self._gates: dict[int, Gates] = {}  # by how many there are
        self._nodes: list[Node] = []  # of the capture under way
        self._lane: Lane | None = None
        self._lost: list[object] = []  # graphs that never began: destroying one would end what it did not begin
        self.arena = NOTHING
        self._open(nbytes)

    def warm_up(self, run: Callable[[], object]) -> None:
        with self._recording():
            run()
        self._main.synchronize()

    def capture(
        self, run: Callable[[], object], updated: Sequence[HostCall] = (), lists: Sequence[list[int]] = ()
    ) -> Graph:
        with self._device.capturing:
            if self._pool is None:
                self._open(None)
            if not updated:
                return FixedGraph(self._record(run))
            updates, lane = self._updates(), self._lane_of_updates()
            gates = self._gates_for(len(updated))
            self._nodes = []
            graph = self._record(run)
            nodes, self._nodes = self._nodes, []
            return UpdatedGraph(graph, nodes, gates, lists, updates, lane)

    def grouped(self, call: HostCall) -> None:
        updates, stream = self._updates(), self._vendor.api.current_stream(self._device.index)
        if call.measure is not None:
            call.use_workspace(self._workspace(stream, call.measure()))
        gate = self._gates[self._expected].events[len(self._nodes)]
        gate.wait(stream)
        gate.reset(stream)
        updates.group_begin(stream)
        try:
            call()
        finally:
            group = updates.group_end(stream)
        self._nodes.append(Node(call, group, gate))

    def switch(self, stream: int, priority: int) -> None:
        if (stream, priority) not in self.streams:
            self.streams[stream, priority] = self._another_stream(priority)
        self._vendor.api.set_stream(self.streams[stream, priority])

    def record(self, event: int) -> None:
        self._events[event] = self._vendor.api.Event()
        self._events[event].record(self._vendor.api.current_stream(self._device.index))

    def wait(self, event: int) -> None:
        self._vendor.api.current_stream(self._device.index).wait_event(self._events[event])

    def bytes(self) -> Bytes:
        mine = [s for s in self._vendor.api.memory_snapshot() if tuple(s["segment_pool_id"]) in self._pools]
        return Bytes(sum(s["allocated_size"] for s in mine), sum(s["total_size"] for s in mine))

    def close(self) -> None:
        self.arena = NOTHING
        for anchor in self._anchors:
            anchor.reset()
            self._device.usage -= self._device.space_cost
        self._anchors.clear()
        self._scratch.clear()
        self._gates.clear()
        self._pool = None

    # ---- recording ----------------------------------------------------------------------------------------------

    def _open(self, nbytes: int | None) -> None:
        """Take a new pool and anchor it; with `nbytes`, allocate the arena in it."""
        self._pool = self._vendor.api.graph_pool_handle()
        self._pools.append(self._pool)
        made = []

        def run() -> None:
            made.append(torch.empty(max(1, nbytes or 1), dtype=torch.uint8, device=self._device.torch_device))
            made[0][:1].zero_()  # an empty graph is not one
            # Free at once, and the pool's from now on: the largest result that an instruction allocates fits there,
            # whatever came before it.
            torch.empty(self._fresh, dtype=torch.uint8, device=self._device.torch_device)

        try:
            self._anchor(run)
        except BaseException as error:
            self._pool = None
            if isinstance(error, RuntimeError) and not isinstance(error, CaptureError):
                raise CaptureError(f"a pool of memory cannot be made: {error}") from error
            raise
        if nbytes is not None:
            self.arena = made[0][:nbytes]

    def _updates(self) -> Updates:
        """The vendor's calls for host arguments. Raises CaptureError where it has none."""
        if self._vendor.updates is None:
            raise CaptureError(f"graphs of {self._vendor.kind} have no host arguments that change")
        return self._vendor.updates

    def _lane_of_updates(self) -> Lane:
        """The streams of replays and updates, made at the first need."""
        if self._lane is None:
            vendor, index = self._vendor, self._device.index
            self._lane = Lane(vendor.api, lambda: vendor.stream_number(index), self._device.torch_device, self._main)
        return self._lane

    def _workspace(self, stream: Stream, needed: torch.Tensor) -> torch.Tensor:
        """One workspace for all calls on a stream, as large as the largest needs; it lies in the pool."""
        kept = self._scratch.get(stream)
        if kept is None or kept.nbytes < needed.nbytes or kept.dtype != needed.dtype:
            kept = self._scratch[stream] = needed
        return kept

    def _gates_for(self, count: int) -> Gates:
        """So many gates, ready for a capture: all graphs of the space share them, since replays never overlap."""
        self._expected = count
        if count not in self._gates:
            updates, main = self._updates(), self._main
            events = tuple(updates.gate() for _ in range(count))

            def close() -> None:
                for event in events:
                    event.record(main)
                    event.wait(main)
                    event.reset(main)

            def open_all() -> None:
                for event in events:
                    event.record(main)

            closing = self._anchor(close)
            self._gates[count] = Gates(events, self._anchor(open_all), closing)
        current = self._vendor.api.current_stream(self._device.index)
        for event in self._gates[count].events:
            event.record(current)  # torch has one wait for each record; a replay closes the gates again
        return self._gates[count]

    def _anchor(self, run: Callable[[], object]) -> Recording:
        self._anchors.append(self._record(run))
        self._device.usage += self._device.space_cost
        return self._anchors[-1]

    def _record(self, run: Callable[[], object]) -> Recording:
        graph, pool = self._vendor.new_graph(), self._pool
        assert pool is not None
        with self._recording():
            self._begin(graph, pool)
            try:
                run()
            except BaseException:
                self._abandon(graph, pool)
                raise
            try:
                graph.capture_end()
            except RuntimeError as error:
                self._vendor.release_pool(self._device.index, pool)
                raise CaptureError(f"the capture did not end well: {error}") from error
        return graph

    def _begin(self, graph: Unfinished, pool: tuple[int, int]) -> None:
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        except RuntimeError as error:
            self._lost.append(graph)
            self._vendor.stop_allocating(self._device.index, pool)
            self._vendor.release_pool(self._device.index, pool)
            self._pool = None  # it counts as recording for good; the next capture takes a new one
            raise CaptureError(f"the capture did not begin: {error}") from error

    def _abandon(self, graph: Unfinished, pool: tuple[int, int]) -> None:
        """End a capture whose instructions failed, and drop what there is of it."""
        self._vendor.api.set_stream(self._main)
        try:
            graph.capture_end()
        except RuntimeError:  # the fault that ended `run` has spoilt the capture too: nothing of it is left
            self._vendor.release_pool(self._device.index, pool)
        else:
            graph.reset()

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """On the capture's stream, after what the caller has issued, and without the garbage collector: it might free
        what a capture must not touch."""
        api, before = self._vendor.api, self._vendor.api.current_stream(self._device.index)
        collects = gc.isenabled()
        gc.disable()
        self._events.clear()
        try:
            with torch.inference_mode():
                self._main.wait_stream(before)
                api.set_stream(self._main)
                yield
        finally:
            api.set_stream(before)
            self._events.clear()
            if collects:
                gc.enable()

    def _another_stream(self, priority: int) -> Stream:
        for _ in range(_ALIKE):
            stream: Stream = self._vendor.api.Stream(self._device.torch_device, priority=priority)
            if stream not in self.streams.values():
                return stream
        raise CaptureError(f"torch has no more than {_ALIKE} streams", got=f"{len(self.streams)} in use by one bucket")
