"""How long did the device take for each of several things that were asked of it one after another?"""

import itertools
import time
from typing import Any, Protocol


class Timer(Protocol):
    """Marks, and the time between each and the next."""

    def mark(self) -> None:
        """Mark where the current stream is; what was issued before comes before."""

    def seconds(self) -> list[float]:
        """The time from each mark to the next, in seconds, once the device is there. The marks are forgotten."""


class HostTimer:
    """By the host's clock, where calls return when their work is done."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        marks, self._marks = self._marks, []
        return [after - before for before, after in itertools.pairwise(marks)]


class EventTimer:
    """By the device's own clock, with an event for each mark; `api` is torch.cuda or torch.npu."""

    def __init__(self, api: Any, index: int):
        self._api, self._index, self._marks = api, index, list[Any]()

    def mark(self) -> None:
        event = self._api.Event(enable_timing=True)
        event.record(self._api.current_stream(self._index))
        self._marks.append(event)

    def seconds(self) -> list[float]:
        marks, self._marks = self._marks, []
        self._api.synchronize(self._index)
        return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(marks)]
