"""How does a captured launch get host arguments that each replay may replace?"""

from collections.abc import Callable, Sequence

import torch

from ..errors import CaptureError
from .base import Graph, Stream
from .host_call import HostCall
from .recorder import Recorder
from .updates import Gates, Lane, Node, UpdatedGraph, Updates
from .vendor import Vendor


class HostArguments:
    """The gates, workspaces and streams that the graphs of one recorder share: their replays never overlap."""

    def __init__(self, vendor: Vendor, index: int, recorder: Recorder):
        self._vendor, self._index, self._recorder = vendor, index, recorder
        self._scratch: dict[Stream, torch.Tensor] = {}  # by stream: the largest workspace so far
        self._gates: dict[int, Gates] = {}  # by how many there are
        self._nodes: list[Node] = []  # of the capture under way
        self._lane: Lane | None = None

    def record(self, run: Callable[[], object], updated: Sequence[HostCall], lists: Sequence[list[int]]) -> Graph:
        """A graph of `run`, which calls `grouped` for each of `updated`. Raises CaptureError."""
        updates, lane = self._updates(), self._lane_of_updates()
        gates = self._gates_for(len(updated))
        self._nodes = []
        graph = self._recorder.record(run)
        nodes, self._nodes = self._nodes, []
        return UpdatedGraph(graph, nodes, gates, lists, updates, lane)

    def grouped(self, call: HostCall) -> None:
        """Launch a call in a task group of its own, behind its gate, within `record`."""
        updates, stream = self._updates(), self._vendor.api.current_stream(self._index)
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

    def close(self) -> None:
        """Let workspaces and gates go."""
        self._scratch.clear()
        self._gates.clear()

    def _updates(self) -> Updates:
        """The vendor's calls for host arguments. Raises CaptureError where it has none."""
        if self._vendor.updates is None:
            raise CaptureError(f"graphs of {self._vendor.kind} have no host arguments that change")
        return self._vendor.updates

    def _lane_of_updates(self) -> Lane:
        """The streams of replays and updates, made at the first need."""
        if self._lane is None:
            vendor, index = self._vendor, self._index
            place = torch.device(vendor.kind, index)
            self._lane = Lane(vendor.api, lambda: vendor.stream_number(index), place, self._recorder.main)
        return self._lane

    def _workspace(self, stream: Stream, needed: torch.Tensor) -> torch.Tensor:
        """One workspace for all calls on a stream, as large as the largest needs; it lies in the pool."""
        kept = self._scratch.get(stream)
        if kept is None or kept.nbytes < needed.nbytes or kept.dtype != needed.dtype:
            kept = self._scratch[stream] = needed
        return kept

    def _gates_for(self, count: int) -> Gates:
        """So many gates, ready for a capture."""
        self._expected = count
        if count not in self._gates:
            updates, main = self._updates(), self._recorder.main
            events = tuple(updates.gate() for _ in range(count))

            def close() -> None:
                for event in events:
                    event.record(main)
                    event.wait(main)
                    event.reset(main)

            def open_all() -> None:
                for event in events:
                    event.record(main)

            closing = self._recorder.anchor(close)
            self._gates[count] = Gates(events, self._recorder.anchor(open_all), closing)
        current = self._vendor.api.current_stream(self._index)
        for event in self._gates[count].events:
            event.record(current)  # torch has one wait for each record; a replay closes the gates again
        return self._gates[count]
