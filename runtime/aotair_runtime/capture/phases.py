"""How long did each step of a load take, and each capture? Noted as they are done: none lies in the way of a call."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

_MOST = 10_000  # captures that are remembered


@dataclass(frozen=True)
class Phase:
    """What was done, when it began (seconds of `time.perf_counter`), and how long it took, in seconds. One that lies
    within another comes before it."""

    name: str
    began: float
    seconds: float


class Phases:
    """The latest phases of a model, in the order in which they ended."""

    def __init__(self) -> None:
        self.done: deque[Phase] = deque(maxlen=_MOST)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note what is done within, unless it fails."""
        began = time.perf_counter()
        yield
        self.done.append(Phase(name, began, time.perf_counter() - began))

    def seconds(self, name: str) -> float:
        """How long the phases of that name took in all."""
        return sum(phase.seconds for phase in self.done if phase.name == name)
