"""Loads, calls and closes in many threads at once, most of which meet a system call or an allocation that fails.

Each turn of a thread loads one of two artifacts, calls it and closes it; of three turns, one closes, one drops the
model, one drops it and keeps its entry point for the call. At a place that is drawn by chance, one of the turn's own
system calls fails as the system makes it fail (too many open files, a fault of the disk, no memory), or one of torch's
functions that allocate does. A turn has to end with the right answer or with one of aotair's errors; in the
end nothing may be left: no file, no mapping, no object of the runtime.
"""

import errno
import gc
import mmap
import os
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

import aotair_runtime
from aotair_runtime.artifact.folder import Folder
from aotair_runtime.call.entry import Entry
from aotair_runtime.capture.pool import Pool
from aotair_runtime.errors import AotairError

from .common import BUILD, Row, options, report
from .exchanged import VALUES, prepare

SYSTEM = [(os, "open"), (os, "preadv"), (os, "fstat"), (os, "stat"), (os, "listdir"), (mmap, "mmap")]
NUMBERS = (errno.EMFILE, errno.EIO, errno.ENOMEM)
ALLOCATE = {torch.empty, torch.empty_strided, torch.zeros, torch.full, torch.Tensor.clone, torch.Tensor.to}
KEPT = (aotair_runtime.Model, Entry, Pool, Folder)
MOST = 20  # of the calls above, of which a turn makes 15
HANGS = 120.0  # seconds in which no turn ends


class Faults(threading.local):
    """The calls that a thread has yet to make until one fails; none does below zero."""

    left = -1
    number = 0

    def reached(self) -> bool:
        self.left -= 1
        return self.left == 0


faults = Faults()


class Allocations(TorchFunctionMode):
    """Functions of torch that allocate fail when it is their turn, as torch's allocator does."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in ALLOCATE and faults.reached():
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: a fault that was put there")
        return function(*args, **(kwargs or {}))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--loads", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=BUILD / "exchanged")
    given = parser.parse_args()
    prepare(given.folder, given.rebuild)
    for module, name in SYSTEM:
        setattr(module, name, failing(getattr(module, name)))
    turn(given.folder, random.Random(0), 0)  # what is imported and cached once
    before = (files(), mappings())
    began = time.monotonic()
    count = turns(given.folder, given.threads, given.loads // given.threads)
    gc.collect()
    of = f"of {given.loads:,} loads in {given.threads} threads,"
    left = sum(type(item) in KEPT for item in gc.get_objects())
    rows = [
        Row(f"{of} ended by an error of Python's or torch's own", 0, count["raw"]),
        Row(f"{of} answered wrong", 0, count["wrong"]),
        Row(f"{of} hung", 0, count["hung"]),
        Row(f"{of} that met their fault and were refused", 0.3 * given.loads, count["refused"], at_least=True),
        Row(f"{of} that met none and answered right", 0.1 * given.loads, count["right"], at_least=True),
        Row("files left open", 0, max(0, files() - before[0])),
        Row("mappings of artifacts left", 0, max(0, mappings() - before[1])),
        Row("models, entry points, pools and folders left", 0, left),
    ]
    print(f"{time.monotonic() - began:.0f} s; {dict(count)}")
    report(rows, given.json)
    os._exit(0) if count["hung"] else None


def turns(folder: Path, threads: int, each: int) -> Counter:
    """How all turns of all threads ended."""
    count, lock, last = Counter(), threading.Lock(), [time.monotonic()]

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for number in range(each):
            end = turn(folder, chance, number)
            with lock:
                count[end] += 1
                last[0] = time.monotonic()

    workers = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) and time.monotonic() - last[0] < HANGS:
        time.sleep(0.05)
    count["hung"] = sum(worker.is_alive() for worker in workers)
    return count


def turn(folder: Path, chance: random.Random, number: int) -> str:
    """One load, call and close, and how it ended."""
    name = chance.choice([*VALUES])
    x = torch.ones(1, 4)
    faults.number, faults.left = chance.choice(NUMBERS), chance.randrange(1, MOST)
    try:
        with Allocations():
            found = answer(folder / name, x, number % 3)
    except AotairError:
        return "refused"
    except Exception as error:  # that is what is counted
        faults.left = -1
        place = [frame for frame in traceback.extract_tb(error.__traceback__) if "aotair_runtime" in frame.filename][-1]
        print(f"{type(error).__name__}: {error}, {place.filename}:{place.lineno}", flush=True)
        return "raw"
    finally:
        faults.left = -1
    return "right" if torch.equal(found, torch.full((1, 2), VALUES[name])) else "wrong"


def answer(path: Path, x: torch.Tensor, way: int) -> torch.Tensor:
    if way == 0:
        with aotair_runtime.load(path) as model:
            return model(x)
    if way == 1:
        return aotair_runtime.load(path)(x)
    return aotair_runtime.load(path).forward(x)


def failing(function: Callable) -> Callable:
    """The same function, which fails in a thread whose turn it is."""

    def called(*args, **kwargs):
        if faults.reached():
            raise OSError(faults.number, os.strerror(faults.number))
        return function(*args, **kwargs)

    return called


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    return sum("safetensors" in line for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    main()
