"""Whose is what lies beside a place under a temporary name, and is its owner still at work?

The name says it from the first moment on: `.NAME.PID-START-HOST-BOOT-RANDOM`, so that nothing is ever there without an
owner. The owner holds a lock on it too, which processes see that share a disk and not their numbers (containers).
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aotair_runtime.artifact.open import SET_ASIDE

_NAME = re.compile(
    r"\.(?P<target>.+)\.(?P<pid>\d{1,9})-(?P<start>\d{1,20})-(?P<host>[0-9a-f]{8})-(?P<boot>[0-9a-f]{8})-[0-9a-f]{8}"
    rf"(?P<aside>{re.escape(SET_ASIDE)})?",
    re.DOTALL,
)
_LONG = 24 * 3600.0  # seconds after which what another host has left unlocked is taken for left


@dataclass(frozen=True)
class Leftover:
    """Something temporary whose owner has ended; `is_aside`: the artifact itself, on the way out of its place."""

    path: Path
    is_aside: bool


def temporary(target: Path, suffix: str = "") -> Path:
    """A path beside `target` that nobody has and that says whose it is."""
    start = _started(os.getpid())
    owner = f"{os.getpid()}-{start}-{_short(os.uname().nodename)}-{_boot()}"
    return target.with_name(f".{target.name}.{owner}-{secrets.token_hex(4)}{suffix}")


def locked(path: Path) -> int:
    """A descriptor of a file or folder that holds its lock; -1 where the file system has no locks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return -1
    return descriptor


def unlock(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


@contextlib.contextmanager
def leftovers(target: Path) -> Iterator[list[Leftover]]:
    """What ended processes have left beside `target`; nobody else finds it within."""
    found, held = [], []
    try:
        for name in sorted(os.listdir(target.parent)):
            match = _NAME.fullmatch(name)
            if match is None or match["target"] != target.name:
                continue
            path = target.with_name(name)
            with contextlib.suppress(OSError):  # locked: somebody is at work; or gone meanwhile
                held.append(locked(path))
                if _has_ended(match, path, held[-1] >= 0):
                    found.append(Leftover(path, match["aside"] is not None))
        yield found
    finally:
        for descriptor in held:
            unlock(descriptor)


def _has_ended(match: re.Match[str], path: Path, is_locked: bool) -> bool:
    """Whether the process of that name is there no more. Of other hosts only the lock tells, and time."""
    if match["host"] != _short(os.uname().nodename):
        return is_locked and time.time() - os.lstat(path).st_mtime > _LONG
    return match["boot"] != _boot() or _started(int(match["pid"])) != int(match["start"])


def _started(pid: int) -> int:
    """When a process began, in ticks since the start of the machine; 0 where the system does not say, -1 where there
    is no such process, or it has ended and nobody has asked how."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return -1 if text[0] in (b"Z", b"X") else int(text[19])
    except (OSError, ValueError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return -1
    except OSError:
        return 0
    return 0


@functools.cache
def _boot() -> str:
    """The machine's start, by which its processes are numbered."""
    try:
        return _short(Path("/proc/sys/kernel/random/boot_id").read_text())
    except OSError:
        return "0" * 8


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
