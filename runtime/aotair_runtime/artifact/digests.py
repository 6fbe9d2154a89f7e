"""Digests of files, taken of parts that are read side by side: a load waits for the disk and not for one core."""

import functools
import hashlib
import os
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from ..errors import AlteredError, TruncatedError
from ..format.schema import PART, File
from .folder import OpenFile, unreadable

_READ = 1 << 20
_SAMPLED = 8  # one part of so many is looked at, and the first, which holds the header
_AGAIN = "copy the artifact again"

# How much of a file is compared with its digests: all of it, some parts by chance, or nothing but its length;
# "signed-only": all of it, where a signature vouches for the digests, and no file that a load does not read.
Verify = Literal["full", "sampled", "length", "signed-only"]
Ranged = Callable[[int, int], str]  # the digest of the bytes from one place to another


def described(file: Path) -> File:
    """A file as a program lists it."""
    with file.open("rb") as stream:
        size, read = os.fstat(stream.fileno()).st_size, of_descriptor(stream.fileno())
        return File(
            file.name, size, read(0, size), tuple(_parts(read, size, range(0, size, PART))) if size > PART else ()
        )


def digest(file: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    with file.open("rb") as stream:
        return of_descriptor(stream.fileno())(0, os.fstat(stream.fileno()).st_size)


def check_length(opened: OpenFile, file: File) -> None:
    """Raises TruncatedError where the file has another length than the recorded one."""
    if opened.nbytes != file.nbytes:
        raise TruncatedError(
            "the file has another length than recorded",
            where=opened.where,
            expected=f"{file.nbytes} bytes",
            got=f"{opened.nbytes} bytes",
            fix=_AGAIN,
        )


def check_file(opened: OpenFile, file: File, verify: Verify = "full", read: Ranged | None = None) -> int:
    """Raises TruncatedError or AlteredError where the file's length or digests are not the recorded ones; returns how
    many bytes were looked at. `read`: where its bytes are now, if not in the file."""
    check_length(opened, file)
    if verify == "length":
        return 0
    read = read or of_descriptor(opened.descriptor)
    starts = _chosen(file) if verify == "sampled" else range(0, file.nbytes, PART)
    with unreadable(opened.where):
        if file.parts:
            wrong = _parts(read, file.nbytes, starts) != [file.parts[start // PART] for start in starts]
        else:
            starts, wrong = range(0, file.nbytes, PART), read(0, file.nbytes) != file.sha256
    if wrong:
        raise AlteredError("the file's bytes do not match their digest", where=opened.where, fix=_AGAIN)
    return sum(min(PART, file.nbytes - start) for start in starts)


def of_descriptor(descriptor: int) -> Ranged:
    """Digests of what an open file holds, read and not mapped: one that is cut meanwhile has another digest."""

    def read(start: int, stop: int) -> str:
        state, view = hashlib.sha256(), memoryview(bytearray(min(_READ, max(1, stop - start))))
        while start < stop and (count := os.preadv(descriptor, [view[: stop - start]], start)):
            state.update(view[:count])
            start += count
        return state.hexdigest()

    return read


def of_memory(memory: memoryview) -> Ranged:
    """Digests of what lies in memory."""
    return lambda start, stop: hashlib.sha256(memory[start:stop]).hexdigest()


def _chosen(file: File) -> list[int]:
    """Where the parts begin that are looked at. Nobody who writes an artifact can know which these are."""
    starts = range(PART, file.nbytes, PART)
    some = random.SystemRandom().sample(starts, -(-len(starts) // _SAMPLED))
    return [0, *sorted(some)]


def _parts(read: Ranged, size: int, starts: Iterable[int]) -> list[str]:
    """The digest of the parts that begin there."""
    starts = list(starts)
    with ThreadPoolExecutor(min(len(starts), os.cpu_count() or 1) or 1) as pool:  # hashlib lets go of the interpreter
        return list(pool.map(functools.partial(_part, read, size), starts))


def _part(read: Ranged, size: int, start: int) -> str:
    return read(start, min(start + PART, size))
