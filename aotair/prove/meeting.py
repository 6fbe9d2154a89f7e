"""Ranks as threads of one process: how their collectives meet, so that a build runs all of them together."""

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from aotair_runtime.devices.groups import PartedError


class Meeting:
    """Where the threads that stand for ranks meet; each has a `ThreadRanks`."""

    def __init__(self, size: int):
        self.size = size
        self._barrier = threading.Barrier(size)
        self._given: list[tuple[str, Tensor] | None] = [None] * size

    def abandon(self) -> None:
        """Let whoever waits, or will, fail: one of them does not come any more."""
        self._barrier.abort()

    def together(self, rank: int, what: str, x: Tensor, make: Callable[[list[Tensor]], None]) -> None:
        """`make` with what each rank gave, once all are there. Raises RuntimeError where they do not ask for the same,
        or one does not come."""
        self._given[rank] = (f"{what} of {x.dtype} {list(x.shape)}", x)
        self._wait()
        given = [one for one in self._given if one is not None]
        asked = {text for text, _ in given}
        try:
            if len(asked) > 1:
                raise PartedError(f"ranks do different things at the same time: {'; '.join(sorted(asked))}")
            make([tensor for _, tensor in given])
        finally:
            self._wait()  # nobody goes on, and writes, while others read

    def _wait(self) -> None:
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError as error:
            raise PartedError("another rank failed") from error


class ThreadRanks:
    """One thread's side of a meeting."""

    def __init__(self, meeting: Meeting, rank: int):
        self._meeting, self._rank, self.size = meeting, rank, meeting.size
        self.number = rank

    def all_reduce(self, x: Tensor, reduce: str) -> None:
        own = x.clone()
        self._meeting.together(self._rank, f"all_reduce {reduce}", own, lambda given: _into(x, _reduced(given, reduce)))

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        self._meeting.together(self._rank, "all_gather", x.clone(), lambda given: _into(out, torch.cat(given)))

    def reduce_scatter(self, out: Tensor, x: Tensor, reduce: str) -> None:
        def make(given: list[Tensor]) -> None:
            _into(out, _reduced([one.chunk(self.size)[self._rank] for one in given], reduce))

        self._meeting.together(self._rank, f"reduce_scatter {reduce}", x.clone(), make)

    def all_to_all(self, out: Tensor, x: Tensor) -> None:
        def make(given: list[Tensor]) -> None:
            _into(out, torch.cat([one.chunk(self.size)[self._rank] for one in given]))

        self._meeting.together(self._rank, "all_to_all", x.clone(), make)

    def broadcast(self, x: Tensor, root: int) -> None:
        self._meeting.together(self._rank, f"broadcast of {root}", x.clone(), lambda given: _into(x, given[root]))


_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
}


def _reduced(given: Sequence[Tensor], reduce: str) -> Tensor:
    """In the order of the ranks, so that all get the same bits."""
    found = given[0]
    for one in given[1:]:
        found = _REDUCE[reduce](found, one)
    return found


def _into(out: Tensor, value: Tensor) -> None:
    out.copy_(value)
