"""What a model tells about itself: its memory and its calls."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import torch

from .buckets import describe
from .schema import Program
from .text import table


@dataclass(frozen=True)
class BucketMemory:
    """Bytes of one bucket's plan: its height, and the least that any plan of it could take."""

    entry: str
    bucket: str
    planned: int
    lower_bound: int


@dataclass(frozen=True)
class MemoryReport:
    """Bytes. `weights` are mapped from the file (CPU), `state` is owned, `arena` was promised by the build and
    `arena_allocated` is what the runtime took for it."""

    weights: int
    state: int
    arena: int
    arena_allocated: int
    buckets: tuple[BucketMemory, ...]

    def as_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        total = self.weights + self.state + self.arena_allocated
        rows = [["weights", self.weights], ["state", self.state], ["arena, promised", self.arena]]
        rows += [["arena, allocated", self.arena_allocated], ["total", total]]
        head = table(["memory", "bytes", "MiB"], [[n, f"{b:,}", f"{b / 2**20:.2f}"] for n, b in rows])
        body = table(
            ["bucket", "planned bytes", "lower bound", "of the arena"],
            [
                [
                    f"{b.entry}: {b.bucket}",
                    f"{b.planned:,}",
                    f"{b.lower_bound:,}",
                    f"{b.planned / max(1, self.arena):.1%}",
                ]
                for b in self.buckets
            ],
        )
        return f"{head}\n\n{body}"


@dataclass(frozen=True)
class BucketStats:
    """Calls that a bucket served; of the input elements it ran, the share that was padding."""

    entry: str
    bucket: str
    calls: int
    padding: float


@dataclass(frozen=True)
class Stats:
    calls: int
    buckets: tuple[BucketStats, ...]

    def as_dict(self) -> dict:
        return asdict(self)


def memory_report(
    program: Program, constants: Sequence[torch.Tensor], states: Sequence[torch.Tensor], arena: torch.Tensor
) -> MemoryReport:
    buckets = tuple(
        BucketMemory(entry.name, describe(entry, bucket.sizes), bucket.height, bucket.lower_bound)
        for entry in program.entry_points
        for bucket in entry.buckets
    )
    return MemoryReport(
        sum(c.nbytes for c in constants), sum(s.nbytes for s in states), program.arena, arena.nbytes, buckets
    )


def stats(entries: Iterable) -> Stats:
    """The counters of loaded entry points (entry.Entry) as a report."""
    buckets = []
    for entry in entries:
        counters = entry.counters
        for number, bucket in enumerate(entry.spec.buckets):
            run = counters.run[number]
            padding = 1 - counters.sent[number] / run if run else 0.0
            name = describe(entry.spec, bucket.sizes)
            buckets.append(BucketStats(entry.spec.name, name, counters.calls[number], padding))
    return Stats(sum(bucket.calls for bucket in buckets), tuple(buckets))
