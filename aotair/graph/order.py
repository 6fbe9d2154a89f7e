"""What is known to be done before what, where nodes run on several streams and events order them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

Clock = tuple[int, ...]  # by stream: how many steps of it are done


@dataclass
class Order:
    """Vector clocks over steps that are added in the order in which the host issues them (Mattern, 1989).

    Stream 0 begins; the others begin after whatever they wait for, and after what stream 0 did before the first step.
    """

    streams: int
    _now: list[list[int]] = field(default_factory=list)
    _stream: list[int] = field(default_factory=list)
    _number: list[int] = field(default_factory=list)
    _after: list[Clock] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._now = [[0] * self.streams for _ in range(self.streams)]

    def step(self, stream: int) -> int:
        """Add a step to a stream; gives its number."""
        clock = self._now[stream]
        clock[stream] += 1
        self._stream.append(stream)
        self._number.append(clock[stream])
        self._after.append(tuple(clock))
        return len(self._stream) - 1

    def wait(self, stream: int, done: Clock) -> None:
        """From now on the stream works after what `done` says."""
        self._now[stream] = [max(pair) for pair in zip(self._now[stream], done)]

    def now(self, stream: int) -> Clock:
        """What is done before the next step of a stream."""
        return tuple(self._now[stream])

    def after(self, step: int) -> Clock:
        """What is done when that step is."""
        return self._after[step]

    def is_before(self, step: int, stream: int) -> bool:
        """Whether a step is done before the next step of a stream."""
        return self._now[stream][self._stream[step]] >= self._number[step]

    def covers(self, clock: Clock, steps: Sequence[int]) -> bool:
        """Whether all those steps are done when `clock` is reached."""
        return all(clock[self._stream[step]] >= self._number[step] for step in steps)
