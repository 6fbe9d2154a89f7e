"""What a model tells about itself: its memory and its calls."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from .call.entry import Entry
from .capture.graphs import Parts, Resident
from .capture.pool import Pool
from .devices.allocators import ALLOCATORS
from .format.html import html_table
from .format.sizes import describe
from .format.text import table
from .memory.promise import FRESH, PACKED, WORKSPACE


@dataclass(frozen=True)
class Category:
    """Bytes of one kind of memory: promised before the load, reserved by the allocator where it lies, and used. On the
    CPU weights are mapped from the file, and host memory is allocated as promised."""

    name: str
    promised: int
    reserved: int
    used: int


@dataclass(frozen=True)
class PoolMemory:
    """Bytes of one pool: its arena, how far the tensors of captured buckets reach into it, and, with what kernels
    allocate by themselves, allocated and reserved."""

    arena: int
    addressed: int
    allocated: int
    reserved: int


@dataclass(frozen=True)
class BucketMemory:
    """Bytes of one bucket's plan: its height, the least that any plan of it could take, how far its tensors reach, and
    by how much the device's reserved memory grew when it was captured (the last two 0 before that)."""

    entry: str
    bucket: str
    promised: int
    lower_bound: int
    addressed: int
    grown: int


@dataclass(frozen=True)
class MemoryReport:
    """Bytes, by category, by pool and by bucket. `arena` was promised by the build; `arena_allocated` is what the
    runtime took for it: the same, or more where a pool serves a larger model too or each bucket has its own; and
    `arena_addressed` what captured programs reach of it, up to the alignment."""

    weights: int
    state: int
    arena: int
    arena_allocated: int
    arena_addressed: int
    categories: tuple[Category, ...]
    pools: tuple[PoolMemory, ...]
    buckets: tuple[BucketMemory, ...]
    rounding: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        shown = [c for c in self.categories if c.used or c.name != PACKED]
        rows = [[c.name, c.promised, c.reserved, c.used] for c in shown]
        rows.append(["in all", *(sum(column) for column in list(zip(*rows))[1:])])
        head = table(["memory", "promised", "reserved", "used"], [[n, *(f"{v:,}" for v in rest)] for n, *rest in rows])
        body = table(
            ["bucket", "planned bytes", "lower bound", "addressed", "of the arena", "grew by"],
            [
                [
                    f"{b.entry}: {b.bucket}",
                    f"{b.promised:,}",
                    f"{b.lower_bound:,}",
                    f"{b.addressed:,}",
                    f"{b.promised / max(1, self.arena):.1%}",
                    f"{b.grown:,}",
                ]
                for b in self.buckets
            ],
        )
        return f"{head}\n{self.rounding}\n\n{body}"


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
    reloads: int = 0  # how often the weights were replaced

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def _repr_html_(self) -> str:
        rows = [[b.entry, b.bucket, b.calls, f"{b.padding:.1%}", b.captures] for b in self.buckets]
        again = [[r.entry, r.bucket, r.reason, r.times] for r in self.recaptures]
        said = f"{self.calls} calls, {self.captures} captures, weights replaced {self.reloads} times"
        tables = [html_table(["entry point", "bucket", "calls", "padding", "captures"], rows, said)]
        if again:
            tables.append(html_table(["entry point", "bucket", "captured again because of", "times"], again))
        return "".join(tables)


def memory_report(parts: Parts, resident: Resident, pools: Sequence[Pool], entries: Iterable[Entry]) -> MemoryReport:
    program, device = parts.program, parts.device
    promised = {item.name: item.nbytes for item in parts.promise.items}
    buckets = tuple(_bucket_memory(entry) for entry in entries)
    reached = _aligned(max((b.addressed for b in itertools.chain(*buckets)), default=0), program.alignment)
    taken = [pool.bytes() for pool in pools]
    arenas = [pool.arena.nbytes for pool in pools]
    pooled = tuple(PoolMemory(arena, reached, b.allocated, b.reserved) for arena, b in zip(arenas, taken))
    packed = sum(one.nbytes for one in resident.by_number.values())
    weights, state = device.held(resident.constants), device.held(resident.states)
    beside = sum(b.allocated for b in taken) - sum(device.held([pool.arena]).allocated for pool in pools)
    extra = sum(b.reserved for b in taken) - sum(arenas)
    categories = (
        Category("weights", promised["weights"], weights.reserved, weights.allocated),
        Category("state", promised["state"], state.reserved, state.allocated),
        Category("arena", promised["arena"], sum(arenas), sum(arenas)),
        Category("beside the arena", promised[FRESH] + promised[WORKSPACE], extra, beside),
        Category(PACKED, promised[PACKED], packed, packed),
    )
    return MemoryReport(
        sum(tensor.nbytes for tensor in resident.constants if tensor.device.type == device.kind),
        sum(tensor.nbytes for tensor in resident.states),
        program.arena,
        sum(arenas),
        reached,
        categories,
        pooled,
        tuple(itertools.chain(*buckets)),
        ALLOCATORS[device.kind].says,
    )


def _bucket_memory(entry: Entry) -> tuple[BucketMemory, ...]:
    counters = entry.graphs.counters
    return tuple(
        BucketMemory(
            entry.spec.name,
            describe(entry.spec, bucket.sizes),
            bucket.height,
            bucket.lower_bound,
            counters.addressed[number],
            counters.grown[number],
        )
        for number, bucket in enumerate(entry.spec.buckets)
    )


def _aligned(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step


def stats(entries: Iterable[Entry], reloads: int = 0) -> Stats:
    """The counters of loaded entry points as a report."""
    buckets: list[BucketStats] = []
    recaptures: list[Recapture] = []
    for entry in entries:
        counters, captured = entry.counters(), entry.graphs.counters
        names = [describe(entry.spec, bucket.sizes) for bucket in entry.spec.buckets]
        for number, name in enumerate(names):
            run = counters.run[number]
            padding = 1 - counters.sent[number] / run if run else 0.0
            calls = counters.calls[number]
            buckets.append(BucketStats(entry.spec.name, name, calls, padding, captured.captures[number]))
        for (number, reason), times in sorted(captured.recaptures.items()):
            recaptures.append(Recapture(entry.spec.name, names[number], reason, times))
    calls, captures = sum(b.calls for b in buckets), sum(b.captures for b in buckets)
    return Stats(calls, captures, tuple(recaptures), tuple(buckets), reloads)
