"""How the time to plan an arena grows with the number of tensors, at the default effort.

The intervals look like a model's: most tensors live for a few steps, some as long as a skip connection, few for a large
part of the run. Peer: greedy by size, its one placement.
"""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from aotair.plan.check import violations
from aotair.plan.interval import columns
from aotair.plan.search import greedy
from aotair.plan.search.arena import Interval, plan_arena
from aotair_runtime.format.text import table

from .common import Row, options, report

COUNTS = (1_250, 2_500, 5_000, 10_000, 20_000, 40_000)
ALIGNMENT = 64


@dataclass(frozen=True)
class Result:
    """Seconds and gaps, the mean of several sets."""

    count: int
    seconds: float
    slowest: float
    check: float
    peer_seconds: float
    height: float
    peer_height: float

    @property
    def growth(self) -> float:
        """Microseconds for each n log n."""
        return self.seconds * 1e6 / (self.count * math.log2(self.count))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--sets", type=int, default=3, help="random sets of each size")
    given = parser.parse_args()
    results = [measure(count, given.sets) for count in COUNTS]
    head = ["tensors", "seconds", "slowest", "us / (n log n)", "check, s", "height / bound", "by size: s", "height"]
    print(table(head, [_cells(result) for result in results]), "\n")
    report(_rows(results), given.json)


def measure(count: int, sets: int) -> Result:
    """Plan and check `sets` sets of `count` intervals."""
    rows = [_measure_one(model_like(count, seed)) for seed in range(sets)]
    means = [sum(values) / sets for values in zip(*rows)]
    return Result(count, means[0], max(row[0] for row in rows), *means[1:])


def model_like(count: int, seed: int) -> list[Interval]:
    """One tensor a step, with a model's lifetimes and sizes."""
    generator, found = random.Random(seed), []
    for step in range(count):
        kind = generator.random()
        length = generator.randrange(1, 9) if kind < 0.9 else generator.randrange(8, 200)
        if kind > 0.995:
            length = generator.randrange(1, count)
        size = ALIGNMENT * generator.choice((1, 16, 256, 1024, 4096, generator.randrange(1, 9000)))
        found.append(Interval(size, step, min(count, step + length)))
    return found


def _measure_one(intervals: Sequence[Interval]) -> tuple[float, ...]:
    start = time.perf_counter()
    plan = plan_arena(intervals, ALIGNMENT)
    planned = time.perf_counter()
    if wrong := violations(intervals, plan, ALIGNMENT):
        raise RuntimeError(wrong[0])
    checked = time.perf_counter()
    items = columns(intervals, ALIGNMENT)
    height = int((greedy.place(items, greedy.order_of("greedy by size", items)) + items.sizes).max())
    peer = time.perf_counter() - checked
    return planned - start, checked - planned, peer, plan.height / plan.lower_bound, height / plan.lower_bound


def _rows(results: Sequence[Result]) -> list[Row]:
    by_count = {result.count: result for result in results}
    small, large, twenty = results[0], results[-1], by_count[20_000]
    return [
        Row("20,000 tensors, slowest", 30, twenty.slowest, "s", f"greedy by size {twenty.peer_seconds:.1f} s"),
        Row(f"time / (n log n), {large.count:,} beside {small.count:,}", 1, large.growth / small.growth, "x"),
        Row("height / bound, mean", 1.01, sum(r.height for r in results) / len(results), "x",
            f"greedy by size {sum(r.peer_height for r in results) / len(results):.4f}"),
    ]  # fmt: skip


def _cells(r: Result) -> list[str]:
    return [f"{r.count:,}", f"{r.seconds:.2f}", f"{r.slowest:.2f}", f"{r.growth:.2f}", f"{r.check:.2f}",
            f"{r.height:.4f}", f"{r.peer_seconds:.2f}", f"{r.peer_height:.4f}"]  # fmt: skip


if __name__ == "__main__":
    main()
