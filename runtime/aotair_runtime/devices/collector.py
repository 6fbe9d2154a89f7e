"""Python's collector of cycles, which is one for the whole process."""

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_resting = 0  # blocks that are within, of all threads
_collects = False  # whether it was on before the first of them


@contextlib.contextmanager
def at_rest() -> Iterator[None]:
    """Within the block nothing is collected, in whichever thread: a capture must not meet what that may free, and a
    load makes tens of thousands of objects that stay, over which each pass takes a tenth of a second to find nothing.
    The last of blocks that overlap turns it on again, if it was on before the first."""
    global _resting, _collects
    with _lock:
        if not _resting:
            _collects = gc.isenabled()
            gc.disable()
        _resting += 1
    try:
        yield
    finally:
        with _lock:
            _resting -= 1
            if not _resting and _collects:
                gc.enable()
