"""One rank calls, the others follow: each call is one message with its inputs, which is their agreement too."""

import contextlib
import math
import threading
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import ArgumentError, ClosedError
from ..format.schema import EntryPoint, Program
from ..format.sizes import evaluate
from ..format.structure import leaf_names
from ..format.torch_names import dtype
from ..ranks.party import Party
from .ranked import RankedEntry

_END = -1
_MOST_INLINE = 1 << 16  # bytes of inputs that travel with the message; larger ones in a second one


class Driver:
    """Calls a model on all ranks, from the first of them: `driver(x)`, `driver.decode(x)`, from any thread, one call at
    a time. `close`, or leaving a `with`, lets the others return from `Model.follow`."""

    def __init__(self, program: Program, entries: Mapping[str, RankedEntry], party: Party):
        if not party.drives:
            raise ArgumentError("another rank drives this one", got=f"rank {party.rank}", fix="call follow() here")
        self._entries, self._wire, self._closed = dict(entries), Wire(program, party), False
        self._turn = threading.Lock()  # the others make calls in the order of their messages

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if len(self._entries) > 1 and "forward" not in self._entries:
            raise ArgumentError("this model has several entry points", expected=", ".join(self._entries))
        name = "forward" if "forward" in self._entries else next(iter(self._entries))
        return self._called(self._entries[name], args, kwargs)

    def __getattr__(self, name: str) -> Any:
        entry = self.__dict__.get("_entries", {}).get(name)
        if entry is None:
            raise AttributeError(f"no attribute or entry point {name!r}")
        return lambda *args, **kwargs: self._called(entry, args, kwargs)

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def named_outputs(self, name: str, inputs: Mapping[str, object]) -> dict[str, torch.Tensor]:
        """One call of an entry point with inputs by name; the outputs by their names in the structure."""
        if name not in self._entries:
            raise ArgumentError("no such entry point", expected=", ".join(self._entries), got=name[:80])
        entry = self._entries[name]
        return dict(zip(leaf_names(entry.spec.structure), self._flat(entry, (), inputs), strict=True))

    def _called(self, entry: RankedEntry, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
        return entry.packed(self._flat(entry, args, kwargs))

    def _flat(self, entry: RankedEntry, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[torch.Tensor]:
        values: Any = entry.ordered(args, kwargs)
        with self._turn:
            if self._closed:
                raise ArgumentError("the driver was closed", fix="make another with Model.driver()")
            sizes = entry.sizes(values)  # refused here, where nobody else knows of it yet
            self._wire.send(entry.number, sizes, values)
            return entry.agreed(values)

    def close(self) -> None:
        with self._turn:
            if not self._closed:
                self._closed = True
                with contextlib.suppress(ClosedError):  # the ranks have parted: nobody waits any more
                    self._wire.send(_END, (), ())


def follow(program: Program, entries: Mapping[str, RankedEntry], party: Party, device: torch.device) -> int:
    """Make the calls that rank 0 drives, until it ends them; gives how many."""
    if party.drives:
        raise ArgumentError("this rank drives the others", got=f"rank {party.rank}", fix="use driver() here")
    wire, by_number, calls = Wire(program, party), {entry.number: entry for entry in entries.values()}, 0
    while (message := wire.receive(device)) is not None:
        number, values = message
        by_number[number].agreed(values)
        calls += 1
    return calls


class Wire:
    """The messages: a header of numbers (entry point, sizes), then the bytes of the inputs in order."""

    def __init__(self, program: Program, party: Party):
        for entry in program.entry_points:
            if wrong := [spec.name for spec in entry.inputs if spec.kind == "mutated"]:
                raise ArgumentError(
                    f"calls of {entry.name} cannot be sent to other ranks",
                    expected="inputs that the model does not write into",
                    got=", ".join(wrong),
                    fix="call the model on every rank",
                )
        self._entries, self._party = program.entry_points, party
        self._head = 8 * (1 + max(len(entry.dims) for entry in self._entries))
        most = max(_nbytes(entry, bucket.sizes) for entry in self._entries for bucket in entry.buckets)
        self._inline = min(most, _MOST_INLINE)
        self._message = bytearray(self._head + self._inline)
        bytes_ = torch.frombuffer(self._message, dtype=torch.uint8)
        self._numbers, self._beside = bytes_[: self._head].view(torch.int64), bytes_[self._head :]

    def send(self, number: int, sizes: tuple[int, ...], given: Any) -> None:
        """`given` fits the entry point, as `RankedEntry.sizes` found."""
        self._numbers[: 1 + len(sizes)] = torch.tensor((number, *sizes), device="cpu")
        values = [_on_host(value) for value in given]
        nbytes = sum(value.nbytes for value in values)
        larger = bytearray(nbytes if nbytes > self._inline else 0)
        payload, at = torch.frombuffer(larger, dtype=torch.uint8) if larger else self._beside, 0
        for value in values:
            raw = value.contiguous().reshape(-1).view(torch.uint8)
            payload[at : at + len(raw)] = raw
            at += len(raw)
        self._party.broadcast(self._message)
        if larger:
            self._party.broadcast(larger)

    def receive(self, device: torch.device) -> "tuple[int, list[torch.Tensor]] | None":
        self._party.broadcast(self._message)
        number, *sizes = self._numbers.tolist()
        if number == _END:
            return None
        entry = self._entries[number]
        sizes = sizes[: len(entry.dims)]
        payload, nbytes = self._beside, _nbytes(entry, sizes)
        if nbytes > self._inline:
            larger = bytearray(nbytes)
            self._party.broadcast(larger)
            payload = torch.frombuffer(larger, dtype=torch.uint8)
        values, at = [], 0
        for spec in entry.inputs:
            shape, kind = [evaluate(size, sizes) for size in spec.shape], dtype(spec.dtype)
            count = math.prod(shape) * kind.itemsize
            value = payload[at : at + count].clone().view(kind).view(shape)
            values.append(value if spec.host else value.to(device))
            at += count
        return number, values


def _on_host(value: object) -> torch.Tensor:
    """An input as a tensor on the host; a host input may be a list of ints, or such a tuple."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return torch.tensor(value, dtype=torch.int64, device="cpu")


def _nbytes(entry: EntryPoint, sizes: Any) -> int:
    """Of all inputs of a call of these sizes."""
    shapes = [[evaluate(size, sizes) for size in spec.shape] for spec in entry.inputs]
    return sum(math.prod(shape) * dtype(spec.dtype).itemsize for shape, spec in zip(shapes, entry.inputs))
