"""What a model tells about itself: its memory and its calls."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from .buckets import describe
from .devices import Bytes
from .entry import Entry
from .graphs import Parts
from .pool import Pool
from .text import table


@dataclass(frozen=True)
class Placed:
    """What the device took for weights and state, as its allocator rounds (nothing on the CPU: see `Category`)."""

    weights: Bytes
    state: Bytes


@dataclass(frozen=True)
class Category:
    """Bytes of one kind of memory: as planned by the build, as allocated, and as reserved by the allocator for it. On
    the CPU weights are mapped from the file, and host memory is allocated as planned."""

    name: str
    planned: int
    allocated: int
    reserved: int


@dataclass(frozen=True)
class PoolMemory:
    """Bytes of one pool: its arena, and with it what kernels allocate by themselves, allocated and reserved."""

    arena: int
    allocated: int
    reserved: int


@dataclass(frozen=True)
class BucketMemory:
    """Bytes of one bucket's plan: its height, the least that any plan of it could take, and by how much the device's
    reserved memory grew when it was captured."""

    entry: str
    bucket: str
    planned: int
    lower_bound: int
    grown: int


@dataclass(frozen=True)
class MemoryReport:
    """Bytes, by category, by pool and by bucket. `arena` was promised by the build; `arena_allocated` is what the
    runtime took for it: the same, or more where a pool serves a larger model too or each bucket has its own."""

    weights: int
    state: int
    arena: int
    arena_allocated: int
    categories: tuple[Category, ...]
    pools: tuple[PoolMemory, ...]
    buckets: tuple[BucketMemory, ...]

    def as_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        rows = [[c.name, c.planned, c.allocated, c.reserved] for c in self.categories]
        rows.append(["total", *(sum(column) for column in list(zip(*rows))[1:])])
        head = table(["memory", "planned", "allocated", "reserved"], [[n, *map(_bytes, rest)] for n, *rest in rows])
        body = table(
            ["bucket", "planned bytes", "lower bound", "of the arena", "grew by"],
            [
                [
                    f"{b.entry}: {b.bucket}",
                    f"{b.planned:,}",
                    f"{b.lower_bound:,}",
                    f"{b.planned / max(1, self.arena):.1%}",
                    f"{b.grown:,}",
                ]
                for b in self.buckets
            ],
        )
        return f"{head}\n\n{body}"


@dataclass(frozen=True)
class BucketStats:
    """Calls that a bucket served; of the input elements it ran, the share that was padding; its captures."""

    entry: str
    bucket: str
    calls: int
    padding: float
    captures: int


@dataclass(frozen=True)
class Recapture:
    """How often a bucket was captured again, and why."""

    entry: str
    bucket: str
    reason: str
    times: int


@dataclass(frozen=True)
class Stats:
    calls: int
    captures: int
    recaptures: tuple[Recapture, ...]
    buckets: tuple[BucketStats, ...]

    def as_dict(self) -> dict:
        return asdict(self)


def memory_report(parts: Parts, placed: Placed, pools: Sequence[Pool], entries: Iterable[Entry]) -> MemoryReport:
    program, device = parts.program, parts.device
    weights, state = (sum(tensor.nbytes for tensor in group) for group in (parts.constants, parts.states))
    taken = [pool.bytes() for pool in pools]
    arenas = [pool.arena.nbytes for pool in pools]
    pooled = tuple(PoolMemory(arena, b.allocated, b.reserved) for arena, b in zip(arenas, taken))
    if not device.concurrent:
        placed = Placed(Bytes(weights, weights), Bytes(state, state))
    beyond = [sum(getattr(b, name) for b in taken) - sum(arenas) for name in ("allocated", "reserved")]
    categories = (
        Category("weights", weights, placed.weights.allocated, placed.weights.reserved),
        Category("state", state, placed.state.allocated, placed.state.reserved),
        Category("arena", program.arena, sum(arenas), sum(arenas)),
        Category("pool beyond the arena", 0, *beyond),
    )
    buckets = tuple(
        BucketMemory(e.spec.name, describe(e.spec, b.sizes), b.height, b.lower_bound, e.graphs.counters.grown[number])
        for e in entries
        for number, b in enumerate(e.spec.buckets)
    )
    return MemoryReport(weights, state, program.arena, sum(arenas), categories, pooled, buckets)


def stats(entries: Iterable[Entry]) -> Stats:
    """The counters of loaded entry points as a report."""
    buckets: list[BucketStats] = []
    recaptures: list[Recapture] = []
    for entry in entries:
        counters, captured = entry.counters, entry.graphs.counters
        names = [describe(entry.spec, bucket.sizes) for bucket in entry.spec.buckets]
        for number, name in enumerate(names):
            run = counters.run[number]
            padding = 1 - counters.sent[number] / run if run else 0.0
            calls = counters.calls[number]
            buckets.append(BucketStats(entry.spec.name, name, calls, padding, captured.captures[number]))
        for (number, reason), times in sorted(captured.recaptures.items()):
            recaptures.append(Recapture(entry.spec.name, names[number], reason, times))
    calls, captures = sum(b.calls for b in buckets), sum(b.captures for b in buckets)
    return Stats(calls, captures, tuple(recaptures), tuple(buckets))


def _bytes(count: int) -> str:
    return f"{count:,}"
