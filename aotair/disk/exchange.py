"""Two paths change places in one step, where the system can do that."""

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path

_EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h
_HERE = -100  # AT_FDCWD
_WITHOUT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def exchange(one: Path, other: Path) -> bool:
    """Let both change places; nobody sees a moment without either. False, and nothing is done, where the platform or
    the file system has no such step (Linux has it, but for network file systems). Raises OSError."""
    call = _renameat2()
    if call is None:
        return False
    ctypes.set_errno(0)
    if call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _WITHOUT:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    call.restype = ctypes.c_int
    return call
