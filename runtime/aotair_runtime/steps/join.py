"""Small ops of a replay that follow each other are made in one call, where `aotair-kernels` is installed.

Each is what it would be alone: it reads and writes the same memory, in the same order. A step whose numbers are beyond
its tensors (a row of a table that is not there), or for which there is no memory, is not made, and torch's own call
takes over there, from the beginning of what the step is a part of.
"""

import ctypes
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .library import Run, run
from .written import Steps


@dataclass(frozen=True)
class Named:
    """A call, what names it in errors, and, of a small op, what it does as steps."""

    call: Callable[[], object]
    name: str
    steps: Steps | None = None


class Joined:
    """Small ops that the library makes; `failing` names the one whose own call was made last."""

    def __init__(self, small: Sequence[tuple[Named, Steps]], kernel: Run):
        data = b"".join(steps.data for _, steps in small)
        ends = itertools.accumulate(steps.count for _, steps in small)
        self._calls = [(end, one.call, one.name) for end, (one, _) in zip(ends, small)]
        self._kept = [tensor for _, steps in small for tensor in steps.kept]
        self._data = ctypes.create_string_buffer(data, len(data))
        self._address, self._count = ctypes.addressof(self._data), sum(steps.count for _, steps in small)
        self._kernel, self.failing = kernel, ""

    def __call__(self) -> None:
        done = self._kernel(self._address, self._count, torch.get_num_threads())
        if done < self._count:
            self._go_on(done)

    def _go_on(self, done: int) -> None:
        for end, call, name in self._calls:
            if end > done:
                self.failing = name
                call()


def is_there() -> bool:
    """Whether small ops can be joined here."""
    return run() is not None


def join(calls: Sequence[Named]) -> list[Named]:
    """The calls, with one, by the name of its first, for small ones that follow each other."""
    kernel = run()
    if kernel is None:
        return list(calls)
    made = list[Named]()
    for _, group in itertools.groupby(calls, lambda one: one.steps is not None):
        some = list(group)
        small = [(one, one.steps) for one in some if one.steps is not None]
        made += [Named(Joined(small, kernel), some[0].name)] if small else some
    return made
