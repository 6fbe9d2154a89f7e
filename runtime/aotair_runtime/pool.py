"""The memory that the graphs of a model share, and the lock that keeps their replays apart."""

import sys
import threading
import warnings
import weakref
from pathlib import Path

import torch

from .devices import Device
from .errors import OutputHeldWarning


class Pool:
    """One arena on `device`. A replay of any graph in the pool overwrites the outputs of the one before."""

    def __init__(self, device: Device, nbytes: int):
        self.device = device
        self.lock = threading.RLock()
        self.arena = device.allocate(nbytes)
        self._handed: list[weakref.ref] = []
        self._warned = False

    def hand_out(self, outputs: list[torch.Tensor]) -> None:
        """Remember outputs that the next replay overwrites."""
        if not self._warned:
            self._handed = [weakref.ref(output) for output in outputs]

    def overwrite(self) -> None:
        """Called before each replay: warns, once, where somebody still holds what it overwrites."""
        if self._handed and any(ref() is not None for ref in self._handed):
            self._warned = True
            self._handed = []
            warnings.warn(
                "an output of an earlier call is still held and is overwritten by this one; "
                "clone() what you keep, or load the model with enable_output_clone=True",
                OutputHeldWarning,
                stacklevel=_callers_level(),
            )

    def close(self) -> None:
        """Let go of the arena; outputs that somebody still holds keep it alive."""
        self.arena = self.arena.new_empty(0)


def _callers_level() -> int:
    """The `stacklevel` that makes a warning point at the line that called the model."""
    here, level, frame = str(Path(__file__).parent), 0, sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(here):
        frame, level = frame.f_back, level + 1
    return level + 1
