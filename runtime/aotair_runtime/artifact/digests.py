"""Digests of files, taken of parts that are read side by side: a load waits for the disk and not for one core."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import AlteredError, TruncatedError
from ..format.schema import PART, File

_READ = 1 << 20


def described(file: Path) -> File:
    """A file as a program lists it."""
    size = file.stat().st_size
    return File(file.name, size, digest(file), tuple(_parts(file, size)) if size > PART else ())


def check_file(folder: Path, file: File) -> None:
    """Raises TruncatedError or AlteredError where the file's length or digests are not the recorded ones."""
    target = folder / file.name
    if not target.is_file():
        raise TruncatedError("the file is missing", where=str(target), fix="copy the artifact again")
    size = target.stat().st_size
    if size != file.nbytes:
        raise TruncatedError(
            "the file has another length than recorded",
            where=str(target),
            expected=f"{file.nbytes} bytes",
            got=f"{size} bytes",
            fix="copy the artifact again",
        )
    wrong = _parts(target, size) != list(file.parts) if file.parts else digest(target) != file.sha256
    if wrong:
        raise AlteredError(
            "the file's bytes do not match their digest", where=str(target), fix="copy the artifact again"
        )


def digest(file: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    return _digest(file, 0, file.stat().st_size)


def _parts(file: Path, size: int) -> list[str]:
    """The digest of each part of a file."""
    starts = range(0, size, PART)
    with ThreadPoolExecutor(min(len(starts), os.cpu_count() or 1) or 1) as pool:  # hashlib lets go of the interpreter
        return list(pool.map(lambda start: _digest(file, start, min(start + PART, size)), starts))


def _digest(file: Path, start: int, stop: int) -> str:
    state, buffer = hashlib.sha256(), bytearray(_READ)
    view = memoryview(buffer)
    with file.open("rb", buffering=0) as stream:
        stream.seek(start)
        while start < stop and (count := stream.readinto(view[: stop - start])):
            state.update(view[:count])
            start += count
    return state.hexdigest()
