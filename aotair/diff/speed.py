"""How long do the ops of two artifacts take, measured one after the other on this machine?"""

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

from aotair_runtime.artifact.open import read_golden
from aotair_runtime.errors import OutputHeldWarning
from aotair_runtime.model import Model
from aotair_runtime.weights.golden import golden_inputs


@dataclass(frozen=True)
class Times:
    """Seconds of one replay of each bucket: whole, by bucket, and stepped, by op over all buckets."""

    buckets: dict[str, float]
    ops: dict[str, float]


@dataclass(frozen=True)
class TimeChange:
    """Seconds of an op, or of a bucket's replay, in both; 0: it has none."""

    name: str
    before: float
    after: float


def measured(model: Model, seconds: float) -> Times:
    """The times of every bucket with its golden inputs, of which each gets about `seconds`."""
    golden = read_golden(model.artifact)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutputHeldWarning)
        with model.profile(seconds=seconds) as found:
            for entry in model.program.entry_points:
                for number in range(len(entry.buckets)):
                    tensors = golden_inputs(golden, entry, number, model.device)
                    hosts = [spec.host for spec in entry.inputs]
                    given: list[Any] = [t.tolist() if host else t for host, t in zip(hosts, tensors, strict=True)]
                    model.entry_points[entry.name].flat(given)
    ops: Counter[str] = Counter()
    for bucket in found.buckets:
        for step in bucket.steps:
            ops[step.op or "events"] += step.seconds  # type: ignore[assignment]  # a counter of seconds
    return Times({f"{one.entry}: {one.bucket}": one.whole for one in found.buckets}, dict(ops))


def time_changes(one: dict[str, float], other: dict[str, float]) -> tuple[TimeChange, ...]:
    """Side by side, those that take longest first."""
    rows = [TimeChange(name, one.get(name, 0.0), other.get(name, 0.0)) for name in dict.fromkeys((*one, *other))]
    return tuple(sorted(rows, key=lambda row: -max(row.before, row.after)))
