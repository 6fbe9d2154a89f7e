"""The memory that the graphs of one or several models share, and the lock that keeps their replays apart."""

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from ..devices import Bytes, Device, GraphSpace, open_device
from ..errors import ArgumentError
from ..memory.amounts import read_bytes
from ..memory.held import Held
from ..memory.overlap import Span, span
from .captured import Captured


class Tenant(Protocol):
    """Whoever has captured graphs in a pool."""

    def captured_in(self, space: GraphSpace) -> Mapping[int, Captured]:
        """Its graphs, captured anew in another space; the old ones stay as they are."""

    def adopt(self, graphs: Mapping[int, Captured]) -> None:
        """Use those from now on."""

    def discard(self, graphs: Mapping[int, Captured]) -> None:
        """Give those back."""


class Turns:
    """Whose turn it is on a device: replays that share memory or state run one after the other, whatever thread or
    stream they come from. Where they do is held by `lock`, in which order the streams work by `enter`."""

    def __init__(self, device: Device):
        self.lock = threading.RLock()
        self._device = device
        self._stream = device.stream()

    def enter(self) -> None:
        """Let the current stream wait for the one that worked before."""
        stream = self._device.stream()
        if stream != self._stream:
            self._device.follow(self._stream)
            self._stream = stream


class Pool:
    """One arena on `device`, as large as its largest user needs. A replay of any graph in the pool overwrites the
    outputs of the one before. Pools with the same `turns` hold what one model, or several, use by turns."""

    def __init__(self, device: Device, nbytes: int = 0, fresh: int = 0, turns: Turns | None = None):
        self.device = device
        self.turns = turns or Turns(device)
        self.lock, self.enter = self.turns.lock, self.turns.enter
        self.replays = 0  # how often what lies in the arena has been overwritten
        self._fresh = fresh
        self._spaces = [device.space(nbytes, fresh)]
        self._tenants: weakref.WeakSet[Tenant] = weakref.WeakSet()
        self._held: weakref.WeakSet[Held] = weakref.WeakSet()
        weakref.finalize(self, _close, device, self._spaces).atexit = False

    @property
    def space(self) -> GraphSpace:
        """The memory that new graphs are captured in."""
        return self._spaces[0]

    @property
    def arena(self) -> torch.Tensor:
        return self.space.arena

    @property
    def span(self) -> Span:
        """The addresses of the arena."""
        return span(self.arena)

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

    def overwrite(self) -> None:
        """Called before each replay, and each capture that runs what it captures."""
        self.enter()
        self.replays += 1

    def held(self) -> Held:
        """Who remembers the outputs that an entry point hands out of this pool."""
        made = Held()
        self._held.add(made)
        return made

    def warn_of_stale(self, tensors: Sequence[torch.Tensor]) -> None:
        """Warns where a call, whose own replay is counted already, gets as an input what a later one than that which
        made it has overwritten."""
        for held in list(self._held):
            held.warn_of_stale(tensors, self.replays - 1)

    def close(self) -> None:
        """Let go of the arena; outputs that somebody still holds keep it alive."""
        with self.lock:
            _close(self.device, self._spaces)

    def _move(self, space: GraphSpace) -> None:
        moved: list[tuple[Tenant, Mapping[int, Captured]]] = []
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


def graph_pool(device: str | torch.device, nbytes: int | str = 0) -> Pool:
    """A pool to hand to several loads (`load(…, pool=pool)`): all their graphs then share memory.

    `device`: "npu", "cuda", "cpu", with an index like "npu:1". `nbytes`: the arena's size, where it is known already;
    it grows with the largest model, and growing captures every graph of the pool anew; "2GiB" is a size too.
    Raises ArgumentError, DeviceError.
    """
    try:
        size = read_bytes(nbytes)
    except ValueError:
        size = None
    if type(size) is not int or size < 0:
        raise ArgumentError("nbytes= is wrong", expected="bytes, as 2 * 2**30 or '2GiB'", got=repr(nbytes)[:80])
    return Pool(open_device(device), size)


def pool_of(handle: tuple[int, int], device: Device) -> Pool:
    """The pool that goes by a handle of the vendor's (`torch.npu.graph_pool_handle()`), the same one for as long as any
    model is in it. Its memory is ours: the handle is a name."""
    with _by_handle_lock:
        pool = _by_handle.get((device.torch_device, handle))
        if pool is None:
            pool = _by_handle[device.torch_device, handle] = Pool(device)
        return pool


_by_handle: weakref.WeakValueDictionary[tuple[torch.device, tuple[int, int]], Pool] = weakref.WeakValueDictionary()
_by_handle_lock = threading.Lock()


def _close(device: Device, spaces: Sequence[GraphSpace]) -> None:
    for space in spaces:
        space.close()
    device.trim()
