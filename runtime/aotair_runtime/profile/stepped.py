"""A bucket's instructions one by one, each with the time that the device takes for it, and the replay as it is."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from ..call.entry import Entry
from ..capture.bind import Tensors, bound_call
from ..devices import Device, Graph
from ..devices.host_call import HostCall
from ..format.debug_data import DebugData, Made
from ..format.schema import Bucket
from .costs import Cost, cost

_Round = TypeVar("_Round")


@dataclass(frozen=True)
class Step:
    """An instruction of a bucket: what it calls (empty for an event), its name in the graph, its stream, its form, the
    number of the event that it records or waits for (-1: none), its time in seconds, what it moves and
    computes, and where it comes from."""

    op: str
    node: str
    stream: int
    form: int
    event: int
    seconds: float
    cost: Cost
    made: Made


@dataclass(frozen=True)
class Times:
    """Of each round: the times of the instructions, and that of the whole replay, in seconds."""

    rounds: Sequence[Sequence[float]]
    replays: Sequence[float]

    @property
    def stepped(self) -> list[float]:
        """The mean time of each instruction in the fastest quarter of the rounds, so that the sum is a mean of sums."""
        return [statistics.fmean(each) for each in zip(*_fastest(self.rounds, sum))]

    @property
    def whole(self) -> float:
        """The mean of the fastest quarter of the replays."""
        return statistics.fmean(_fastest(self.replays, float))


class Stepper:
    """A graph that makes the calls one by one, with a mark of the device's timer before and after each."""

    def __init__(self, entry: Entry, number: int, in_place: dict[int, torch.Tensor]):
        graphs = entry.graphs
        parts, bucket = graphs.parts, entry.spec.buckets[number]
        memory = graphs.memory(number, in_place)
        tensors = Tensors(parts.program, bucket, memory)
        items = [parts.program.instructions[n] for n in bucket.code]
        self._calls: list[Callable[[], object]] = [
            _nothing if item.is_event else bound_call(item, parts.ops, tensors, parts.device.torch_device, memory.lists)
            for item in items
        ]
        self._timer = parts.device.timer()
        self.seconds: list[float] = []

    def replay(self) -> None:
        mark = self._timer.mark
        mark()
        for call in self._calls:
            call()
            mark()
        self.seconds = self._timer.seconds()

    def replay_with(self, lists: Sequence[list[int]]) -> None:
        for call in self._calls:
            if isinstance(call, HostCall):
                call.set(lists)
        self.replay()

    def reset(self) -> None:
        self._calls.clear()


class TimedGraph:
    """A graph whose replay is measured: by the host, how long the launch and the wait took, and by the device."""

    def __init__(self, graph: Graph, device: Device):
        self._graph, self._device, self._timer = graph, device, device.timer()
        self.began = self.launched = self.waited = 0.0
        self.seconds = 0.0

    def replay(self) -> None:
        self._timed(self._graph.replay)

    def replay_with(self, lists: Sequence[list[int]]) -> None:
        self._timed(lambda: self._graph.replay_with(lists))

    def reset(self) -> None:
        self._graph.reset()

    def _timed(self, launch: Callable[[], None]) -> None:
        self.began = time.perf_counter()
        self._timer.mark()
        launch()
        self._timer.mark()
        self.launched = time.perf_counter()
        self._device.synchronize()
        self.waited = time.perf_counter()
        (self.seconds,) = self._timer.seconds()


def steps_of(entry: Entry, bucket: Bucket, times: Times, debug: DebugData) -> tuple[Step, ...]:
    """The instructions of a bucket with their times."""
    program = entry.graphs.parts.program
    found = []
    for number, seconds in zip(bucket.code, times.stepped, strict=True):
        item = program.instructions[number]
        event = item.args[0] if item.is_event and isinstance(item.args[0], int) else -1
        op = "" if item.is_event else program.ops[item.op].name
        spent = 0.0 if item.is_event else seconds
        made = cost(program, bucket, item)
        found.append(Step(op, item.node, item.stream, item.form, event, spent, made, debug.of(number)))
    return tuple(found)


def _fastest(rounds: Sequence[_Round], key: Callable[[_Round], float]) -> list[_Round]:
    """What a neighbour on the machine has slowed down says nothing of the program."""
    return sorted(rounds, key=key)[: -(-len(rounds) // 4)]


def _nothing() -> None:
    """Events order streams; one by one there is nothing to order."""
