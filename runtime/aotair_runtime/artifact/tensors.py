"""Which tensors does a safetensors file of an artifact hold, and where? Read strictly: every byte of it belongs to a
tensor, and nothing lies on top of something else.

`safetensors.safe_open` takes a path, and would open another file than the one whose digest was taken.
"""

import json
import math
import mmap
from collections.abc import Collection
from dataclasses import dataclass
from typing import NoReturn

import torch

from ..errors import MalformedError, TruncatedError
from .checkpoint import DTYPES
from .folder import OpenFile, read_into, unreadable
from .json_file import distinct

_MOST_DIMENSIONS = 64
_MOST_SIZE = 1 << 48
_KEYS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True)
class _Place:
    """A tensor of the file; `start` counts from the file's beginning."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


def mapped(file: OpenFile, *, private: bool = False) -> mmap.mmap:
    """What the file holds as memory of this process: writes into it never reach the file. `private`: a copy, so that
    writes into the file do not reach the memory either. Raises TruncatedError, UnreadableError."""
    if not file.nbytes:
        raise TruncatedError("the file is empty", where=file.where, fix="copy the artifact again")
    with unreadable(file.where):
        if not private:
            return mmap.mmap(file.descriptor, file.nbytes, access=mmap.ACCESS_COPY)
        memory = mmap.mmap(-1, file.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        read_into(memoryview(memory), file.descriptor)
        return memory


def tensors_in(
    memory: mmap.mmap, where: str, most_header: int, known: Collection[str] | None = None
) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file that lies in memory, each with a storage of its own there. Raises
    MalformedError, before anything is parsed where the header is longer than `most_header`, and where it names a tensor
    that is not `known`."""
    begin, header = _header(memory, where, most_header)
    places: dict[str, _Place] = {}
    at = begin
    for name, start, stop, place in sorted(_spans(header, begin, where, known), key=lambda span: span[1:3]):
        if start != at:
            _refuse("bytes between two tensors, or in both of them", where, f"{_short(name)} from {start} on")
        if start % place.dtype.itemsize:
            _refuse("a tensor at an address that its dtype cannot have", where, f"{_short(name)} from {start} on")
        places[name], at = place, stop
    if at != len(memory):
        _refuse("the tensors do not reach to the end of the file", where, f"{at} of {len(memory)} bytes")
    return {name: _tensor(memory, places[name]) for name in header}


def _header(memory: mmap.mmap, where: str, most: int) -> tuple[int, dict[str, object]]:
    """Where the data begin, and what the header says."""
    size = int.from_bytes(memory[:8], "little")
    if len(memory) < 8 or size > len(memory) - 8:
        _refuse("the header is longer than the file", where, f"{size} of {len(memory)} bytes")
    if size > most:
        _refuse("the header is longer than the program's tensors need", where, f"{size} bytes, at most {most}")
    try:
        found = json.loads(memory[8 : 8 + size].decode("utf-8"), object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"not readable as safetensors: {_short(str(error))}", where=where) from error
    if not isinstance(found, dict):
        _refuse("not readable as safetensors: the header is no object", where, type(found).__name__)
    return 8 + size, found


def _spans(
    header: dict[str, object], begin: int, where: str, known: Collection[str] | None
) -> list[tuple[str, int, int, _Place]]:
    """Of each tensor its name, where it begins and ends in the file, and its place."""
    spans = []
    for name, said in header.items():
        if known is not None and name not in known:
            _refuse("a tensor that the program does not know", where, _short(name))
        if not isinstance(said, dict) or said.keys() != _KEYS:
            _refuse("not readable as safetensors: a tensor needs dtype, shape and data_offsets", where, _short(name))
        kind, shape, offsets = DTYPES.get(str(said["dtype"])), said["shape"], said["data_offsets"]
        if kind is None:
            _refuse("a dtype that torch does not have", where, f"{_short(name)}: {_short(str(said['dtype']))}")
        if not _sizes(shape, _MOST_DIMENSIONS) or not _sizes(offsets, 2) or len(offsets) != 2:
            _refuse("shape and data_offsets are lists of possible sizes", where, _short(name))
        start, stop = (begin + offset for offset in offsets)
        if stop - start != math.prod(shape) * kind.itemsize:
            _refuse("a tensor with another number of bytes than its shape has", where, _short(name))
        spans.append((name, start, stop, _Place(kind, tuple(shape), start)))
    return spans


def _sizes(value: object, most: int) -> bool:
    return isinstance(value, list) and len(value) <= most and all(type(n) is int and 0 <= n < _MOST_SIZE for n in value)


def _tensor(memory: mmap.mmap, place: _Place) -> torch.Tensor:
    count = math.prod(place.shape)
    if not count:
        return torch.empty(place.shape, dtype=place.dtype, device="cpu")
    return torch.frombuffer(memory, dtype=place.dtype, count=count, offset=place.start).view(place.shape)


def _short(text: str) -> str:
    """At most so much of a name that somebody else wrote, with nothing that a terminal obeys."""
    return ascii(text)[:80]


def _refuse(what: str, where: str, got: str) -> NoReturn:
    raise MalformedError(what, where=where, got=got, fix="copy the artifact again, or build it again")
