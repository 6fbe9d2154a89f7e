"""What does a JSON file hold that somebody else wrote? It may be of any size and shape."""

import json
from pathlib import Path


def json_object(file: Path, most: int) -> dict[str, object]:
    """The object in a file of at most so many bytes. Raises ValueError, which says what is wrong."""
    try:
        if file.stat().st_size > most:
            raise ValueError(f"it has more than {most} bytes")
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(found, dict):
        raise ValueError(f"it holds no object, but {found!r}"[:120])
    return found
