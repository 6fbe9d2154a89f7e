"""How many calls a second does a machine make of an artifact: in one process with all threads, or in several that share
them out?"""

import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch

import aotair_runtime
from aotair_runtime.errors import AotairError
from aotair_runtime.format.text import table

from .bench import golden_calls
from .user_modules import import_modules

_START = 300.0  # seconds until all have loaded


@dataclass(frozen=True)
class Work:
    """What processes do at the same time: how many, each with so many threads, for how many seconds in each bucket.
    `modules` are imported first, `options` are those of `load`."""

    artifact: Path
    workers: int
    threads: int
    seconds: float
    modules: tuple[str, ...] = ()
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Throughput:
    """Of all workers together: calls a second, and milliseconds of a call in the median."""

    entry: str
    bucket: str
    workers: int
    threads: int
    calls: float
    median: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


_Found = list[tuple[str, str, float, float]]  # by bucket: the entry point, its name, calls a second, seconds of one


def throughput(work: Work) -> list[Throughput]:
    """Measure every bucket in `work.workers` processes at once. Raises AotairError where one of them fails."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(work.workers)
    with ProcessPoolExecutor(work.workers, context, initializer=_join, initargs=(together,)) as pool:
        running = [pool.submit(_worker, work) for _ in range(work.workers)]
    errors = [error for one in running if (error := one.exception()) is not None]
    if errors:
        raise next((one for one in errors if not isinstance(one, threading.BrokenBarrierError)), errors[0])
    return [_sum(work, each) for each in zip(*(one.result() for one in running), strict=True)]


def workers_table(alone: Sequence[Throughput], shared: Sequence[Throughput]) -> str:
    """Both ways beside each other; the same buckets in the same order."""
    names = [f"{rows[0].workers} x {rows[0].threads}" for rows in (alone, shared)]
    head = ["bucket", *(f"calls/s, {name}" for name in names), "ratio", *(f"ms, {name}" for name in names)]
    lines = []
    for one, other in zip(alone, shared, strict=True):
        calls = [f"{one.calls:.1f}", f"{other.calls:.1f}", f"{other.calls / one.calls:.2f}"]
        lines.append([f"{one.entry}: {one.bucket}", *calls, f"{one.median:.3f}", f"{other.median:.3f}"])
    return f"workers x threads\n{table(head, lines)}"


def _sum(work: Work, each: Sequence[tuple[str, str, float, float]]) -> Throughput:
    entry, bucket, _, _ = each[0]
    calls, median = sum(rate for *_, rate, _ in each), statistics.median(seconds for *_, seconds in each)
    return Throughput(entry, bucket, work.workers, work.threads, calls, median * 1e3)


_met: list[Barrier] = []  # of a worker process: where it waits for the others


def _join(barrier: Barrier) -> None:
    _met.append(barrier)


def _worker(work: Work) -> _Found:
    (together,) = _met
    try:
        return list(_measured(work, together))
    except threading.BrokenBarrierError:
        raise
    except Exception as error:  # whatever it is: the others wait for this one, and it goes from process to process
        together.abort()
        raise AotairError(str(error) if isinstance(error, AotairError) else f"a worker failed: {error}") from None


def _measured(work: Work, together: Barrier) -> Iterator[tuple[str, str, float, float]]:
    import_modules(work.modules)
    torch.set_num_threads(work.threads)  # copies beside the replay too
    with aotair_runtime.load(work.artifact, threads=work.threads, **(work.options or {})) as model:
        for entry, bucket, inputs in golden_calls(model):
            call = model.entry_points[entry.name]
            call(*inputs)
            together.wait(_START)
            yield entry.name, bucket, *_rate(call, inputs, work.seconds)


def _rate(call: Any, inputs: Sequence[Any], seconds: float) -> tuple[float, float]:
    """Calls a second, and the median of their seconds."""
    times = list[float]()
    begun = now = time.perf_counter()
    while now - begun < seconds or len(times) < 5:
        call(*inputs)
        before, now = now, time.perf_counter()
        times.append(now - before)
    return len(times) / (now - begun), statistics.median(times)
