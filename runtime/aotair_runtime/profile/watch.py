"""The calls of an entry point, measured while somebody watches; nothing of it is there when nobody does."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..call.buckets import read_sizes
from ..call.call_plan import CallPlan, shape_of
from ..call.entry import Entry
from ..call.signature import Tensors
from .stepped import Stepper, TimedGraph, Times

MOST_CALLS = 100_000  # that are remembered: the latest


@dataclass(frozen=True)
class Call:
    """One call, in seconds: when it began, and how long it took to find its bucket, to copy inputs in and fill padding,
    to launch the replay, to wait for the device, and to hand out. `sizes` are its own; of the elements that it `ran`
    it `sent` so many."""

    entry: str
    bucket: int
    sizes: tuple[int, ...]
    sent: int
    ran: int
    began: float
    found: float
    copied: float
    launched: float
    waited: float
    handed: float
    thread: int = 0

    @property
    def seconds(self) -> float:
        """The whole call."""
        return self.found + self.copied + self.launched + self.waited + self.handed


class Watch:
    """Takes the place of an entry point's `flat` and of its replay between `begin` and `end`."""

    def __init__(self, entry: Entry, calls: deque[Call], rounds: int, seconds: float):
        self._entry, self._calls, self._rounds, self._seconds = entry, calls, rounds, seconds
        self._began = threading.local()
        self._flat, self._replay = entry.flat, entry._replay
        self.times: dict[int, Times] = {}  # by bucket
        self.at: dict[int, float] = {}  # when its last round began
        self.seen = 0

    def begin(self) -> None:
        self._entry.watched(self.flat, self.replay)

    def end(self) -> None:
        self._entry.unwatched()

    def flat(self, tensors: Tensors) -> list[torch.Tensor]:
        self._began.at = time.perf_counter()
        return self._flat(tensors)

    def replay(
        self, plan: CallPlan, tensors: Tensors, users: Tensors, lists: list[list[int]], apart: bool
    ) -> list[torch.Tensor]:
        """In the place of the entry point's own, under its lock."""
        start, began = time.perf_counter(), getattr(self._began, "at", time.perf_counter())
        run = self._runner(plan, tensors, users, lists, apart)
        if plan.number not in self.times:
            self.times[plan.number] = self._rounds_of(plan, tensors, users, run)
            began += time.perf_counter() - start
            start = time.perf_counter()
        timed = TimedGraph(plan.captured.graph, self._entry.graphs.parts.device)
        outputs = run(timed)
        end = time.perf_counter()
        sizes = read_sizes(self._entry.spec, [shape_of(tensor) for tensor in tensors])
        self.seen += 1
        self._calls.append(
            Call(
                self._entry.spec.name,
                plan.number,
                sizes,
                plan.sent,
                plan.run,
                began,
                start - began,
                timed.began - start,
                timed.launched - timed.began,
                timed.waited - timed.launched,
                end - timed.waited,
                threading.get_ident(),
            )
        )
        return outputs

    def _runner(
        self, plan: CallPlan, tensors: Tensors, users: Tensors, lists: list[list[int]], apart: bool
    ) -> Callable[[Stepper | TimedGraph], list[torch.Tensor]]:
        """The call with another graph in the place of its own."""

        def run(graph: Stepper | TimedGraph) -> list[torch.Tensor]:
            own, plan.captured.graph = plan.captured.graph, graph
            try:
                return self._replay(plan, tensors, users, lists, apart)
            finally:
                plan.captured.graph = own

        return run

    def _rounds_of(
        self,
        plan: CallPlan,
        tensors: Tensors,
        users: Tensors,
        run: Callable[[Stepper | TimedGraph], list[torch.Tensor]],
    ) -> Times:
        """Instructions one by one and the whole replay by turns, after one of each that counts for nothing; what they
        write is as before at the end."""
        in_place = {position: tensors[position] for position, _ in plan.captured.key}
        stepper = Stepper(self._entry, plan.number, in_place)
        whole = TimedGraph(plan.captured.graph, self._entry.graphs.parts.device)
        kept = [(tensor, tensor.clone()) for tensor in self._changed(plan, in_place, users)]
        calls, stepped, replays = plan.calls, list[list[float]](), list[float]()
        end = time.perf_counter() + self._seconds
        while len(replays) < 3 or (len(replays) <= self._rounds and time.perf_counter() < end):
            for graph in (whole, stepper):
                self.at[plan.number] = time.perf_counter()
                run(graph)
                _put_back(kept)
            replays.append(whole.seconds)
            stepped.append(stepper.seconds)
        plan.calls = calls
        return Times(stepped[1:], replays[1:])

    def _changed(
        self, plan: CallPlan, in_place: dict[int, torch.Tensor], users: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """States, inputs that are used in place, and inputs that lie in the arena: what a replay may write."""
        low, high = plan.arena
        within = [tensor for tensor in users if low <= tensor.data_ptr() < high]
        return [*self._entry.graphs.resident.states, *in_place.values(), *within]


def _put_back(kept: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.inference_mode():
        for tensor, before in kept:
            tensor.copy_(before)
