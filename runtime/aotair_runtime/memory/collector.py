"""Python's collector of cycles."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def at_rest() -> Iterator[None]:
    """Within the block nothing is collected: a load makes tens of thousands of objects that stay, and each pass over
    them and over torch's takes a tenth of a second to find nothing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
