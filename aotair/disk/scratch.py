"""A folder that nobody else knows, for what is written only to be read again at once."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A new folder, where the system keeps such; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="aotair-") as folder:
        yield Path(folder)
