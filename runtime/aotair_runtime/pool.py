"""The memory that the graphs of one or several models share, and the lock that keeps their replays apart."""

import sys
import threading
import warnings
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import torch

from .devices import Bytes, Device, Space, open_device
from .errors import OutputHeldWarning


class Tenant(Protocol):
    """Whoever has captured graphs in a pool."""

    def captured_in(self, space: Space) -> object:
        """Its graphs, captured anew in another space; the old ones stay as they are."""

    def adopt(self, graphs: object) -> None:
        """Use those from now on."""

    def discard(self, graphs: object) -> None:
        """Give those back."""


class Pool:
    """One arena on `device`, as large as its largest user needs. A replay of any graph in the pool overwrites the
    outputs of the one before, and replays run one after the other, whatever thread or stream they come from."""

    def __init__(self, device: Device, nbytes: int = 0, fresh: int = 0, lock: AbstractContextManager | None = None):
        self.device = device
        self.lock = lock or threading.RLock()
        self._fresh = fresh
        self._spaces = [device.space(nbytes, fresh)]
        self._tenants: weakref.WeakSet = weakref.WeakSet()
        self._stream = device.stream()
        self._handed: list[weakref.ref] = []
        self._warned = False
        weakref.finalize(self, _close, device, self._spaces).atexit = False

    @property
    def space(self) -> Space:
        """The memory that new graphs are captured in."""
        return self._spaces[0]

    @property
    def arena(self) -> torch.Tensor:
        return self.space.arena

    def bytes(self) -> Bytes:
        """What the pool takes on the device."""
        return self.space.bytes()

    def join(self, tenant: Tenant) -> None:
        self._tenants.add(tenant)

    def reserve(self, nbytes: int, fresh: int = 0) -> None:
        """Make the arena at least so large, with room for `fresh` bytes that kernels allocate. All graphs of the pool
        are then captured anew in the larger one, or, where that fails, stay as they are and the error is raised."""
        with self.lock:
            if nbytes > self.arena.nbytes:
                fresh = max(fresh, self._fresh)
                self._move(self.device.space(nbytes, fresh))
                self._fresh = fresh

    def hand_out(self, outputs: list[torch.Tensor]) -> None:
        """Remember outputs that the next replay overwrites."""
        if not self._warned:
            self._handed = [weakref.ref(output) for output in outputs]

    def enter(self) -> None:
        """Let the current stream wait for the one that worked in the pool before."""
        stream = self.device.stream()
        if stream != self._stream:
            self.device.follow(self._stream)
            self._stream = stream

    def overwrite(self) -> None:
        """Called before each replay and capture: enters, and warns, once, where somebody still holds an output that
        is overwritten."""
        self.enter()
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
        with self.lock:
            _close(self.device, self._spaces)

    def _move(self, space: Space) -> None:
        moved: list[tuple[Tenant, object]] = []
        try:
            for tenant in list(self._tenants):
                moved.append((tenant, tenant.captured_in(space)))
        except BaseException:
            for tenant, graphs in moved:
                tenant.discard(graphs)
            space.close()
            raise
        for tenant, graphs in moved:
            tenant.adopt(graphs)
        old, self._spaces[0] = self.space, space
        _close(self.device, [old])


def graph_pool(device: str, nbytes: int = 0) -> Pool:
    """A pool to hand to several loads (`load(…, pool=pool)`): all their graphs then share memory.

    `device`: "npu", "cuda", "cpu", with an index like "npu:1". `nbytes`: the arena's size, where it is known already;
    it grows with the largest model, and growing captures every graph of the pool anew.
    """
    return Pool(open_device(device), nbytes)


def _close(device: Device, spaces: Sequence[Space]) -> None:
    for space in spaces:
        space.close()
    device.trim()


def _callers_level() -> int:
    """The `stacklevel` that makes a warning point at the line that called the model."""
    here, level, frame = str(Path(__file__).parent), 0, sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(here):
        frame, level = frame.f_back, level + 1
    return level + 1
