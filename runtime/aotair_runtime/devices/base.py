"""What the runtime asks of a device."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from .host_call import HostCall
from .timers import Timer


@dataclass(frozen=True)
class Bytes:
    """Memory in bytes: what tensors take, rounded as the allocator rounds, and what the allocator holds for them."""

    allocated: int
    reserved: int

    def __sub__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.allocated - other.allocated, self.reserved - other.reserved)


@dataclass(frozen=True)
class Limits:
    """The most graphs, streams and events that the graphs of one process may take; None: no known limit."""

    captures: int | None = None
    streams: int | None = None
    events: int | None = None


@dataclass(frozen=True)
class Usage:
    """Graphs, and the streams and events that they take until they are reset."""

    captures: int = 0
    streams: int = 0
    events: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.captures + other.captures, self.streams + other.streams, self.events + other.events)

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(self.captures - other.captures, self.streams - other.streams, self.events - other.events)


# What a closed space has for an arena. Nothing is computed when memory is given back: that may happen whenever the
# garbage collector likes, in the midst of somebody's tracing too.
NOTHING = torch.empty(0, dtype=torch.uint8, device="cpu")


class Stream(Protocol):
    """A queue of launches, as torch gives it."""

    def wait_stream(self, stream: "Stream", /) -> None: ...

    def wait_event(self, event: "Event", /) -> None: ...

    def synchronize(self) -> None: ...


class Event(Protocol):
    """A mark in a stream, as torch gives it."""

    def record(self, stream: Stream, /) -> None: ...


class Gate(Event, Protocol):
    """An event that a capture waits for and that is recorded outside of it."""

    def wait(self, stream: Stream, /) -> None: ...

    def reset(self, stream: Stream, /) -> None: ...


class Recording(Protocol):
    """Recorded launches at fixed addresses."""

    def replay(self) -> None:
        """Launch everything that was recorded."""

    def reset(self) -> None:
        """Give back what the recording holds."""


class Graph(Recording, Protocol):
    """A bucket's recording, whatever it needs of a call."""

    def replay_with(self, lists: Sequence[list[int]]) -> None:
        """Launch it with these lists as host arguments, where it was captured with some. Raises UpdateError."""


class GraphSpace(Protocol):
    """Memory that graphs share: `arena` (uint8, 1-D, aligned to at least 64 bytes), and, where kernels allocate by
    themselves, the vendor's pool for that; with the streams that they are captured on.
    """

    arena: torch.Tensor

    def warm_up(self, run: Callable[[], object]) -> None:
        """Run once outside of a capture, on the capture's stream, and wait for it."""

    def capture(
        self, run: Callable[[], object], updated: Sequence[HostCall] = (), lists: Sequence[list[int]] = ()
    ) -> Graph:
        """Record what `run` launches; where that fails, nothing of it is left. Raises what `run` raises, or
        CaptureError. `updated` are its calls with host arguments, which hold `lists`."""

    def grouped(self, call: HostCall) -> None:
        """Within `run`: make a call whose host arguments a replay may replace."""

    def switch(self, stream: int, priority: int) -> None:
        """Within `run`: what follows goes to the space's stream of that number and priority (lower is more urgent);
        number 0 is the one of the capture."""

    def record(self, event: int) -> None:
        """Within `run`: record an event on the current stream."""

    def wait(self, event: int) -> None:
        """Within `run`: let the current stream wait for a recorded event."""

    def bytes(self) -> Bytes:
        """What the arena and the pool take."""

    def close(self) -> None:
        """Give everything back; a tensor in the arena that somebody holds keeps the arena alive."""


class Seen(abc.ABC):
    """A weight in a form of the device that ops take as a tensor in the plain one's place, at addresses that stay."""

    nbytes: int  # what it takes beside the weight as it is stored

    @abc.abstractmethod
    def fill(self, weight: torch.Tensor) -> None:
        """Take the values of another weight of the same shape."""

    @abc.abstractmethod
    def seen(self, plain: torch.Tensor) -> torch.Tensor | None:
        """What an op is given instead of the weight, which it would see so; None where it has no such view."""


class Called(Protocol):
    """A weight in the form that a kernel of the device reads, which is called by calls of its own, at addresses that
    stay."""

    @property
    def nbytes(self) -> int:
        """What it takes beside the weight as it is stored."""

    def fill(self, weight: torch.Tensor) -> None:
        """Take the values of another weight of the same shape."""

    def call(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Callable[[], object] | None:
        """What `op` gives for these arguments, with the packed weight in the place of the plain one, in memory of its
        own or where an out argument says; None where they do not fit the weight: kernels need not ask."""

    def into(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object], result: torch.Tensor
    ) -> Callable[[], object] | None:
        """The same of an op that has no out argument, written into `result`; None where `call` allocates it, or refuses
        the arguments."""


Packed = Called | Seen


class Leading(abc.ABC):
    """A bound call that may do the work of the call after it as well."""

    @abc.abstractmethod
    def __call__(self) -> object: ...

    @abc.abstractmethod
    def then(self, call: Callable[[], object]) -> Callable[[], object] | None:
        """One call for both; None where there is none."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Make ready what its first call would otherwise: it follows nothing more."""


class Allocates:
    """A packed weight whose ops without an out argument give memory of their own."""

    def into(
        self, op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object], result: torch.Tensor
    ) -> None:
        return None


class Device(Protocol):
    kind: str
    is_host: bool  # the CPU, which runs what was built for any device, as far as it has the ops
    torch_device: torch.device
    name: str  # of the device, as its vendor calls it
    vendor_version: str  # of the package that brings the device to torch
    limits: Limits
    usage: Usage  # of all live graphs of this process
    space_cost: Usage  # what a space takes by itself
    concurrent: bool  # launches return before the work is done, and streams exist

    def place(self, constants: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Mapped constants where the device can read them: themselves where possible, else copies in one block."""

    def copies(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Copies of tensors on this device, in one block."""

    def packed(self, weight: torch.Tensor, op: str) -> Packed | None:
        """A weight in the form that the device's kernel of `op` reads fastest; None: it is best as it is (`forms`)."""

    def held(self, tensors: Sequence[torch.Tensor]) -> Bytes:
        """What the allocator took for the memory of `tensors`, and what it reserves where they lie."""

    def space(self, nbytes: int, fresh: int = 0) -> GraphSpace:
        """Memory for graphs, with an arena of `nbytes`, and room for `fresh` bytes that kernels allocate."""

    def stream(self) -> int:
        """A number for the caller's current stream."""

    def follow(self, stream: int) -> None:
        """Let the current stream wait for all that was issued on another."""

    def synchronize(self) -> None:
        """Wait for everything issued."""

    def timer(self) -> Timer:
        """What measures how long the device takes for what is asked of it on the current stream."""

    def bytes(self) -> Bytes:
        """What this process takes on the device in all."""

    def total(self) -> int:
        """The bytes of memory that the device has."""

    def free(self) -> int | None:
        """The bytes that a model could still take; None: not known beforehand."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error says that memory could not be had."""

    def trim(self) -> None:
        """Let the allocator give back what it holds and nobody uses."""
