"""What a call costs, by bucket: the replay, the host's work around it, and the original model beside it."""

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from aotair_runtime import Model
from aotair_runtime.artifact.open import read_golden
from aotair_runtime.call.host_time import without_replay
from aotair_runtime.format.schema import EntryPoint
from aotair_runtime.format.sizes import describe
from aotair_runtime.format.text import table
from aotair_runtime.weights.golden import golden_inputs


@dataclass(frozen=True)
class BucketTimes:
    """Milliseconds, but `host` in microseconds: the call without the replay, None for a model of several ranks. `eager`
    is None where not asked for."""

    entry: str
    bucket: str
    median: float
    p99: float
    host: float | None
    eager: float | None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measure(model: Model, originals: Mapping[str, Callable[..., object]], seconds: float) -> Iterator[BucketTimes]:
    """Measure every bucket on its golden inputs, spending about `seconds` on each.

    `originals` has what the original model calls, by entry point; nothing for those that are not to be compared. The
    artifact and the original take turns, so that both see the same weather on the machine. Of several ranks this is the
    first, which drives the others; they have to be in `Model.follow`.
    """
    with contextlib.ExitStack() as stack:
        caller = stack.enter_context(model.driver()) if model.program.mesh else model
        yield from _measured(model, caller, originals, seconds)


def _measured(
    model: Model, caller: Any, originals: Mapping[str, Callable[..., object]], seconds: float
) -> Iterator[BucketTimes]:
    for entry, bucket, inputs in golden_calls(model):
        calls = [functools.partial(getattr(caller, entry.name), *inputs)]
        if entry.name in originals:
            named = {spec.name: value for spec, value in zip(entry.inputs, inputs)}
            calls.append(functools.partial(originals[entry.name], **named))
        replays, *eager = _in_turns(calls, seconds, model.synchronize)
        yield BucketTimes(
            entry.name,
            bucket,
            statistics.median(replays) * 1e3,
            _percentile(replays, 0.99) * 1e3,
            None if model.program.mesh else _host_seconds(model, entry.name, inputs) * 1e6,
            statistics.median(eager[0]) * 1e3 if eager else None,
        )


def golden_calls(model: Model) -> Iterator[tuple[EntryPoint, str, list[Any]]]:
    """For every bucket its entry point, its name and its golden inputs, as a call takes them."""
    golden = read_golden(model.artifact)
    for entry in model.program.entry_points:
        for number, bucket in enumerate(entry.buckets):
            given = golden_inputs(golden, entry, number, model.device)
            inputs = [tensor.tolist() if spec.host else tensor for spec, tensor in zip(entry.inputs, given)]
            yield entry, describe(entry, bucket.sizes), inputs


def bench_table(rows: Sequence[BucketTimes]) -> str:
    eager = any(row.eager is not None for row in rows)
    head = ["bucket", "replay ms", "p99 ms", "host us"] + (["eager ms", "replay / eager"] if eager else [])
    lines = []
    for row in rows:
        line = [
            f"{row.entry}: {row.bucket}",
            f"{row.median:.3f}",
            f"{row.p99:.3f}",
            "" if row.host is None else f"{row.host:.1f}",
        ]
        lines.append(line + ([f"{row.eager:.3f}", f"{row.median / row.eager:.2f}"] if row.eager else []))
    return table(head, lines)


def _in_turns(calls: Sequence[Callable[[], object]], seconds: float, wait: Callable[[], None]) -> list[list[float]]:
    """The times of each call in seconds, until the device is done: a warm-up, then by turns until the time is up, 5 to
    2000 of each."""
    times: list[list[float]] = [[] for _ in calls]
    with torch.inference_mode():
        for call in calls:
            call()
            call()
        end = time.perf_counter() + seconds
        while len(times[0]) < 5 or (time.perf_counter() < end and len(times[0]) < 2000):
            for call, found in zip(calls, times):
                wait()
                start = time.perf_counter()
                call()
                wait()
                found.append(time.perf_counter() - start)
    return times


def _host_seconds(model: Model, entry: str, inputs: list[Any], rounds: int = 2000) -> float:
    """The median time of a call whose replay does nothing."""
    call, times = model.entry_points[entry], []
    with without_replay(call, inputs):
        for _ in range(rounds):
            start = time.perf_counter()
            call(*inputs)
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]
