"""How the ranks of one host tell each other a few numbers at each call: by memory that they share.

Each rank has two slots, used in turn: who has heard everybody's word number n may write n + 2 over its own n. A slot
holds the number of the word, the word, and a sum of both, so that one that is half written is read again.
"""

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

FOLDER = Path("/dev/shm")  # where files are memory
_SPINS, _YIELDS = 50, 2000  # looks at the others before this rank steps aside, and before it sleeps
_LEAST_SLEEP, _MOST_SLEEP = 2e-5, 1e-3  # seconds
_BETWEEN = 0.1  # seconds between two looks at whether a rank is gone
_TOKEN = 16  # bytes


class SilentError(RuntimeError):
    """Ranks have said nothing for too long, or one is gone; `places` are those that have not spoken, in order."""

    def __init__(self, places: Sequence[int]):
        super().__init__("a rank does not say anything")
        self.places = tuple(places)


class Words:
    """`rank` of `count` ranks, each of which says `length` numbers of 64 bits at a time."""

    def __init__(self, memory: mmap.mmap, rank: int, count: int, length: int):
        self._memory, self._rank, self._count, self._number = memory, rank, count, 0
        self._slot = struct.Struct(f"={length + 2}q")

    def exchange(self, mine: Sequence[int], timeout: float, is_gone: Callable[[], bool]) -> list[list[int]]:
        """What every rank says in this turn. Raises SilentError after `timeout` seconds, or where one `is_gone`."""
        self._number += 1
        number, slot, memory = self._number, self._slot, self._memory
        turn, said_here = number % 2, slot.pack(number, *mine, _sum(number, mine))
        own = self._place(self._rank, turn)
        memory[own : own + slot.size] = said_here
        heard: list[list[int]] = []
        for rank in range(self._count):
            place, looks, end, look_after, sleep = self._place(rank, turn), 0, 0.0, 0.0, _LEAST_SLEEP
            while True:
                if memory[place : place + slot.size] == said_here:  # as in nearly every turn: nothing has to be read
                    heard.append([*mine])
                    break
                said = slot.unpack_from(memory, place)
                if said[0] == number and said[-1] == _sum(number, said[1:-1]):
                    heard.append(list(said[1:-1]))
                    break
                looks += 1
                if looks < _SPINS:
                    continue
                if looks < _YIELDS:
                    os.sched_yield()
                    continue
                now = time.monotonic()
                end = end or now + timeout
                if now > end or (now > look_after and is_gone()):
                    raise SilentError([one for one in range(self._count) if not self._spoken(one)])
                look_after = look_after if now <= look_after else now + _BETWEEN
                time.sleep(sleep)
                sleep = min(2 * sleep, _MOST_SLEEP)
        return heard

    def _spoken(self, rank: int) -> bool:
        said = self._slot.unpack_from(self._memory, self._place(rank, self._number % 2))
        return bool(said[0] == self._number)

    def _place(self, rank: int, turn: int) -> int:
        return _TOKEN + (2 * rank + turn) * self._slot.size

    def close(self) -> None:
        self._memory.close()


def _sum(number: int, words: Sequence[int]) -> int:
    return (number * 0x9E3779B1 + sum(words) + 1) & 0x7FFFFFFFFFFFFFFF


def shared(count: int, length: int) -> tuple[mmap.mmap, str, str] | None:
    """Memory for such ranks, the file by which others open it, and what they find there; None where there is none."""
    nbytes = _TOKEN + 2 * count * 8 * (length + 2)
    with contextlib.suppress(OSError):
        token = os.urandom(_TOKEN // 2).hex()
        path = FOLDER / f"aotair-{os.getpid()}-{os.urandom(8).hex()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.truncate(descriptor, nbytes)
            memory = mmap.mmap(descriptor, nbytes)
            memory[:_TOKEN] = token.encode()
            return memory, str(path), token
        finally:
            os.close(descriptor)
    return None


def opened(path: str, token: str) -> mmap.mmap | None:
    """The memory that another rank has made, where this one can see it."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        if memory[:_TOKEN] == token.encode():
            return memory
        memory.close()
    return None
