"""How long does the host work around a replay? Calls whose replay does nothing."""

import contextlib
from collections.abc import Iterator

from .entry import Entry
from .signature import Tensors


@contextlib.contextmanager
def without_replay(entry: Entry, tensors: Tensors) -> Iterator[None]:
    """Calls like the one with `tensors` do everything but the replay: what is left to time is the host's work."""
    captured = entry.captured(tensors)
    graph, captured.graph = captured.graph, _NOTHING
    try:
        yield
    finally:
        captured.graph = graph


class _Nothing:
    def replay(self, *_: object) -> None:
        pass

    replay_with = replay

    def reset(self) -> None:
        pass


_NOTHING = _Nothing()
