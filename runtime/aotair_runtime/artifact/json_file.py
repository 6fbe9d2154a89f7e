"""What does a JSON file hold that somebody else wrote? It may be of any size and shape."""

import json
import os
import stat
from pathlib import Path


def json_object(file: Path, most: int) -> dict[str, object]:
    """The object in a file of at most so many bytes. Raises ValueError, which says what is wrong."""
    try:
        found = json.loads(_content(file, most).decode("utf-8"))
    except (OSError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(found, dict):
        raise ValueError(f"it holds no object, but {found!r}"[:120])
    return found


def distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of these names and values, for `json.loads`. Raises ValueError where a name stands there twice, of
    which one reader takes the first and another the last."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _content(file: Path, most: int) -> bytes:
    """Opened once; a pipe of that name would wait for somebody who writes."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        data = stream.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most} bytes")
    return data
