"""Small ops of a replay that follow each other are made in one call, where `aotair-kernels` is installed.

Each is what it would be alone: it reads and writes the same memory, in the same order. A step whose numbers are beyond
its tensors (a row of a table that is not there) is not made, and torch's own call takes over there, with its error.
"""

import ctypes
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .library import Run, run
from .written import Steps

Call = Callable[[], object]


@dataclass(frozen=True)
class Small:
    """A call, what it does as steps, and its name."""

    call: Call
    steps: Steps
    node: str


class Joined:
    """Calls that the library makes; `failing` names the one that was refused last."""

    def __init__(self, calls: Sequence[Small], kernel: Run):
        data = b"".join(one.steps.data for one in calls)
        self._data = ctypes.create_string_buffer(data, len(data))
        self._calls, self._kernel, self.failing = calls, kernel, ""
        self._firsts = [0, *itertools.accumulate(one.steps.count for one in calls)]
        self._address, self._count = ctypes.addressof(self._data), self._firsts[-1]

    def __call__(self) -> None:
        done = self._kernel(self._address, self._count, torch.get_num_threads())
        if done < self._count:
            self._go_on(done)

    def _go_on(self, done: int) -> None:
        for one, first in zip(self._calls, self._firsts):
            if first >= done:
                self.failing = one.node
                one.call()


def joined(calls: Sequence[Call | Small], nodes: Sequence[str]) -> tuple[list[Call], list[str]]:
    """Calls and their names, with one call, by the name of its first, for small ones that follow each other."""
    kernel = run()
    made, names = list[Call](), list[str]()
    for small, group in itertools.groupby(zip(calls, nodes), lambda pair: isinstance(pair[0], Small)):
        some = list(group)
        found = [one for one, _ in some if isinstance(one, Small)]
        if small and kernel is not None:
            made.append(Joined(found, kernel))
            names.append(some[0][1])
            continue
        made += [one.call if isinstance(one, Small) else one for one, _ in some]
        names += [node for _, node in some]
    return made, names
