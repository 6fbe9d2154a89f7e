"""Which outputs somebody still holds although a later call has overwritten them."""

import sys
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch

from ..errors import OutputHeldWarning

_ref = weakref.ref


class Held:
    """The outputs that one entry point has handed out in one pool.

    In a loop `got = model(x)` holds the outputs of one call until the next has returned, which does no harm. Whoever
    holds them still at the call after that has numbers that are not those of the call they came from.
    """

    def __init__(self) -> None:
        self._last: list[weakref.ref[torch.Tensor]] = []
        self._overwritten: list[weakref.ref[torch.Tensor]] = []
        self._replay = 0  # the pool's replay that made the last ones
        self._warned = False

    def hand_out(self, outputs: Sequence[torch.Tensor], replay: int) -> None:
        """Remember what this call returns, made by the pool's replay of that number; what the call before returned has
        been overwritten. Warns, once, where somebody still holds what was overwritten before."""
        if self._warned:
            return
        self._replay = replay
        for ref in self._overwritten:
            if ref() is not None:
                self._warn("an output is still held two calls later, and was overwritten by the call between")
                return
        self._overwritten = self._last
        self._last = [*map(_ref, outputs)]

    def warn_of_stale(self, tensors: Sequence[torch.Tensor], replay: int) -> None:
        """Warns, once, where one of `tensors`, the inputs of a call, is an output that a later call has overwritten;
        `replay` is the number of the pool's last replay."""
        refs = self._overwritten + (self._last if replay != self._replay else [])
        stale = {id(tensor) for ref in refs if (tensor := ref()) is not None}
        if not self._warned and any(id(tensor) in stale for tensor in tensors):
            self._warn("an output that a later call has overwritten is passed as an input")

    def _warn(self, what: str) -> None:
        self._warned, self._last, self._overwritten = True, [], []
        warnings.warn(
            f"{what}; clone() what you keep, or load the model with enable_output_clone=True",
            OutputHeldWarning,
            stacklevel=_callers_level(),
        )


def _callers_level() -> int:
    """The `stacklevel` that makes a warning point at the line that called the model."""
    here, level = str(Path(__file__).parent.parent), 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(here):
        frame, level = frame.f_back, level + 1
    return level + 1
