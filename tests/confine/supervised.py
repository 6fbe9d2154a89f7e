"""Hostile work in a process of its own, begun again where it dies: what it did, and which case ended it how."""

import json
import mmap
import os
import resource
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HANGS = 20.0  # seconds after which a case counts as one that hangs
_TOLD = 50  # cases after which a process says how they ended: one that dies takes the rest along
Work = Callable[[int], str]  # makes the case of that number, and says how it ended


class Fault(Exception):
    """Something happened that may not."""


@dataclass
class Findings:
    """How often which end was seen, and the cases that did what none may, each with what it was."""

    ends: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[int, str]] = field(default_factory=list)


def supervise(make: Callable[[], Work], first: int, last: int) -> Findings:
    """Make the cases from `first` to before `last`, by the work that `make` prepares in the other process.

    A case that raises, or ends its process by a signal or by hanging, is a fault; the next one begins a new process.
    """
    found, shared, case = Findings(), mmap.mmap(-1, mmap.PAGESIZE), first
    while case < last:
        struct.pack_into("q", shared, 0, case)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _work(make, case, last, shared, writing)
        os.close(writing)
        status, said = _wait(child, reading, shared)
        (case,) = struct.unpack_from("q", shared, 0)
        for line in said.splitlines():
            end, *what = json.loads(line)
            if end == "ends":
                found.ends.update(what[0])
            else:
                found.faults.append((end, what[0]))
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            found.faults.append((case, "hangs" if name == "SIGALRM" else name))
            case += 1
    return found


def _work(make: Callable[[], Work], first: int, last: int, shared: mmap.mmap, pipe: int) -> None:
    """The other process: never returns."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    ends: Counter[str] = Counter()

    def tell() -> None:
        os.write(pipe, (json.dumps(["ends", ends]) + "\n").encode())
        ends.clear()

    def leave() -> None:
        tell()
        os._exit(0)

    try:
        work = make()
    except Exception as error:  # nothing can be tried then
        os.write(pipe, (json.dumps([first, f"cannot begin: {type(error).__name__}: {error}"]) + "\n").encode())
        struct.pack_into("q", shared, 0, last)
        leave()
    for case in range(first, last):
        struct.pack_into("q", shared, 0, case)
        signal.setitimer(signal.ITIMER_REAL, HANGS)
        try:
            ends[work(case)] += 1
            if case % _TOLD == 0:
                tell()
        except Exception as error:  # that is what is looked for
            text = str(error) if isinstance(error, Fault) else f"{type(error).__name__}: {error}, {_place(error)}"
            os.write(pipe, (json.dumps([case, text[:300]]) + "\n").encode())
            struct.pack_into("q", shared, 0, case + 1)
            leave()
    struct.pack_into("q", shared, 0, last)
    leave()


def _place(error: Exception) -> str:
    """Where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def _wait(child: int, reading: int, shared: mmap.mmap) -> tuple[int, str]:
    """Until the process ends; one that a signal cannot reach, because a kernel never returns, is killed."""
    os.set_blocking(reading, False)
    said, seen, since = b"", -1, time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        try:
            while part := os.read(reading, 1 << 16):
                said += part
        except BlockingIOError:
            pass
        if ended:
            os.close(reading)
            return status, said.decode()
        (case,) = struct.unpack_from("q", shared, 0)
        if case != seen:
            seen, since = case, time.monotonic()
        elif time.monotonic() - since > 2 * HANGS:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
