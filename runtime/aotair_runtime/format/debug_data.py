"""Where each instruction comes from: `debug.msgpack`, beside the program and about it. No load reads it.

One msgpack array `["aotair debug", 1, sha256 of program.msgpack, sha256 of body, body]`; the body is the msgpack of
four arrays: lines of the model's code, modules, passes, and for each instruction three numbers into these.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import msgpack

from ..errors import AlteredError, FormatVersionError, MalformedError

_MAGIC, _VERSION = "aotair debug", 1


@dataclass(frozen=True)
class Made:
    """Where an instruction comes from: the line of the model's code (`model.py:12, in forward`), the path of the
    module (`encoder.layer.0`; `.` is the model itself), and the passes that made it, one after another, with commas
    between them (`export` where none did). Empty: not known."""

    line: str = ""
    module: str = ""
    passes: str = ""


@dataclass(frozen=True)
class DebugData:
    """`made` has one for each instruction of a program, in its order; empty where nothing was recorded."""

    made: tuple[Made, ...] = ()

    def of(self, instruction: int) -> Made:
        """Where the instruction of that number comes from."""
        return self.made[instruction] if self.made else Made()


def dump(data: DebugData, program: bytes) -> bytes:
    """The bytes of `debug.msgpack`, for a program of those bytes; equal ones give equal bytes."""
    lines: dict[str, int] = {}
    modules: dict[str, int] = {}
    passes: dict[str, int] = {}
    numbers = []
    for one in data.made:
        for table, text in ((lines, one.line), (modules, one.module), (passes, one.passes)):
            numbers.append(table.setdefault(text, len(table)))
    body: bytes = msgpack.packb([list(lines), list(modules), list(passes), numbers], use_bin_type=True)
    digests = [hashlib.sha256(part).digest() for part in (program, body)]
    whole: bytes = msgpack.packb([_MAGIC, _VERSION, *digests, body], use_bin_type=True)
    return whole


def parse(data: bytes, program: bytes, instructions: int, where: str) -> DebugData:
    """What `data` says about a program of those bytes and that many instructions; `where` names the file in errors.

    Raises MalformedError, FormatVersionError, or AlteredError where it was written for another program.
    """
    envelope = _unpacked(data, where)
    if not (isinstance(envelope, list) and len(envelope) == 5 and envelope[0] == _MAGIC):
        raise MalformedError("this is no debugging data", where=where, expected=f"an array that begins with {_MAGIC!r}")
    _, version, of, digest, body = envelope
    if type(version) is not int or version != _VERSION:
        got = repr(version)[:20]
        raise FormatVersionError("debugging data of another version", where=where, expected=str(_VERSION), got=got)
    if not isinstance(body, bytes) or hashlib.sha256(body).digest() != digest:
        raise AlteredError("the debugging data do not match their digest", where=where, fix="copy the artifact again")
    if hashlib.sha256(program).digest() != of:
        raise AlteredError("the debugging data are of another program", where=where, fix="copy the artifact again")
    parts = _unpacked(body, where)
    if not (isinstance(parts, list) and len(parts) == 4 and all(isinstance(part, list) for part in parts)):
        raise MalformedError("the debugging data are malformed", where=where, expected="four arrays")
    *tables, numbers = parts
    texts = [_texts(table, where) for table in tables]
    if len(numbers) != 3 * instructions or not _are_below(numbers, [len(table) for table in texts]):
        raise MalformedError(
            "the debugging data are malformed", where=where, expected=f"three numbers for each of {instructions}"
        )
    rows = zip(numbers[::3], numbers[1::3], numbers[2::3])
    return DebugData(tuple(Made(texts[0][a], texts[1][b], texts[2][c]) for a, b, c in rows))


def _unpacked(data: bytes, where: str) -> object:
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedError(f"not readable as msgpack: {error}", where=where) from error


def _texts(table: Iterable[object], where: str) -> list[str]:
    found = [text for text in table if isinstance(text, str)]
    if len(found) != len(list(table)):
        raise MalformedError("the debugging data are malformed", where=where, expected="tables of texts")
    return found


def _are_below(numbers: list[object], bounds: list[int]) -> bool:
    return all(type(number) is int and 0 <= number < bounds[n % 3] for n, number in enumerate(numbers))
