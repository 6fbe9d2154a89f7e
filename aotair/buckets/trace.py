"""Which shapes were sent, and how often: a trace read from JSON lines or CSV."""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from aotair_runtime.errors import AotairError

_LONGEST_LINE = 1 << 20
_LARGEST = (1 << 31) - 1
_DIGITS = re.compile(r"[0-9]{1,10}")

Row = dict[str, object]  # as JSON has it, or texts


@dataclass(frozen=True)
class Trace:
    """The distinct shapes of a trace in order, as sizes in the order of `dims`, and how often each was sent."""

    dims: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]


def read_trace(file: Path, dims: Sequence[str]) -> Trace:
    """The trace in a file: one key or column for each of `dims`, and `count` (1 where absent); others are ignored.

    JSON lines where the first character is `{`, else CSV with a header. Raises AotairError where it cannot be read.
    """
    found: Counter[tuple[int, ...]] = Counter()
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            for number, row in _rows(stream):
                sizes = tuple(_number(row, dim, number) for dim in dims)
                found[sizes] += _number(row, "count", number) if row.get("count") not in (None, "") else 1
        if not found:
            raise ValueError("there is no request in it")
    except (OSError, UnicodeDecodeError, ValueError, RecursionError, csv.Error) as error:
        raise AotairError(
            f"no trace: {type(error).__name__}: {error}",
            where=str(file),
            expected=f"JSON lines, or CSV with a header: {', '.join(dims)} and, where it is not 1, count; "
            f"whole numbers from 1 to {_LARGEST}",
        ) from error
    ordered = sorted(found.items())
    return Trace(tuple(dims), tuple(sizes for sizes, _ in ordered), tuple(count for _, count in ordered))


def _rows(stream: TextIO) -> Iterator[tuple[int, Row]]:
    """(line, row) of each request."""
    lines = _lines(stream)
    number, first = next(((n, line) for n, line in lines if line.strip()), (0, ""))
    if first.lstrip().startswith("{"):
        yield number, _object(first, number)
        yield from ((n, _object(line, n)) for n, line in lines if line.strip())
        return
    names = [name.strip() for name in next(csv.reader([first]), [])]
    if len(set(names)) != len(names):
        raise ValueError(f"line {number}: a column is there twice: {', '.join(names)[:200]}")
    reader = csv.reader(line for _, line in lines)
    for cells in reader:
        if cells:
            place = number + reader.line_num
            if len(cells) != len(names):
                raise ValueError(f"line {place}: {len(cells)} cells, and {len(names)} columns")
            yield place, dict(zip(names, cells))


def _lines(stream: TextIO) -> Iterator[tuple[int, str]]:
    number = 0
    while line := stream.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            raise ValueError(f"line {number} has more than {_LONGEST_LINE:,} characters")
        if "\0" in line:
            raise ValueError(f"line {number} is not text")
        yield number, line


def _object(line: str, number: int) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"line {number}: not an object: {line.strip()[:60]}")
    return row


def _number(row: Row, name: str, line: int) -> int:
    """A whole number from 1 up."""
    if name not in row:
        raise ValueError(f"line {line}: {name} is missing")
    value = row[name]
    if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        value = int(value)
    if type(value) is not int or not 1 <= value <= _LARGEST:
        raise ValueError(f"line {line}: {name} is {str(value)[:40]!r}")
    return value
