"""How much padding the buckets chosen from a trace save, and how long the choice takes.

Peers: sizes that are powers of two, and evenly spaced ones; with two dimensions the best product of such sizes, in as
many buckets or fewer. All hold the largest request. The traces are synthetic, from fixed seeds.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from aotair.buckets.choose import best_buckets
from aotair.buckets.points import Points, total
from aotair.buckets.trace import Trace
from aotair_runtime.format.text import table

from .common import Row, options, report


@dataclass(frozen=True)
class Result:
    """Shares of the elements run that are padding; `least` is what no set of so many buckets can go below."""

    name: str
    shapes: int
    buckets: int
    ours: float
    least: float
    powers: float
    even: float
    seconds: float


def main() -> None:
    given = options(__doc__).parse_args()
    results = [measure(name, trace, most) for name, trace, most in _cases()]
    head = ["trace", "shapes", "buckets", "ours", "at least", "powers of two", "evenly spaced", "seconds"]
    print(table(head, [_cells(one) for one in results]), "\n")
    rows = [Row(f"{one.name}, {one.buckets} buckets: padding", min(one.powers, one.even), one.ours, "",
                f"powers {one.powers:.3f}, even {one.even:.3f}") for one in results]  # fmt: skip
    rows.append(Row("longest choice", 60, max(one.seconds for one in results), "s"))
    report(rows, given.json)


def measure(name: str, trace: Trace, most: int) -> Result:
    """Choose, and compare with both habits."""
    start = time.perf_counter()
    pick = best_buckets(trace, [True] * len(trace.dims), most)[-1]
    seconds = time.perf_counter() - start
    points = Points(np.array(trace.sizes, np.int64), np.array(trace.counts, np.int64))
    real = points.elements
    powers, even = (1 - real / _habit(points, most, sizes) for sizes in (_powers, _even))
    least = max(0.0, 1 - real / pick.bound)
    return Result(name, len(trace.sizes), most, 1 - real / pick.cost, least, powers, even, seconds)


def _habit(points: Points, most: int, sizes: Callable[[int, int], Sequence[int]]) -> int:
    """The elements run in the best product of at most so many buckets with such sizes."""
    largest = [int(size) for size in points.sizes.max(axis=0)]
    counts = itertools.product(range(1, most + 1), repeat=len(largest))
    fitting = [each for each in counts if np.prod(each) <= most]
    return min(total(points, tuple(itertools.product(*map(sizes, largest, each)))) for each in fitting)


def _powers(largest: int, count: int) -> list[int]:
    """The largest power of two that is needed, and those below it; the last is cut to the largest request."""
    top = (largest - 1).bit_length()
    return sorted({min(largest, 1 << max(0, top - step)) for step in range(count)})


def _even(largest: int, count: int) -> list[int]:
    return sorted({-(-largest * step // count) for step in range(1, count + 1)})


def _cases() -> list[tuple[str, Trace, int]]:
    random = np.random.default_rng(0)
    tokens = _lengths(random, 100_000, 4.5, 0.8, 2048)
    short, long = _lengths(random, 70_000, 3.3, 0.4, 128), _lengths(random, 30_000, 7.5, 0.3, 8192)
    wide = _lengths(random, 200_000, 8.0, 1.0, 32_768)
    batches = random.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32], 3_000, p=[0.4, *[0.6 / 9] * 9])
    few = random.choice([1, 2, 4, 8], 1_000)
    both = np.stack([batches, _lengths(random, 3_000, 4.2, 0.7, 512)], axis=1)
    small = np.stack([few, -(-_lengths(random, 1_000, 4.0, 0.6, 256) // 8) * 8], axis=1)
    return [
        ("log-normal tokens", _trace(tokens[:, None]), 8), ("log-normal tokens", _trace(tokens[:, None]), 16),
        ("bimodal tokens", _trace(np.concatenate([short, long])[:, None]), 8),
        ("long tokens", _trace(wide[:, None]), 64),
        ("batch x seq by 8", _trace(small), 8), ("batch x seq", _trace(both), 16),
    ]  # fmt: skip


def _lengths(random: np.random.Generator, count: int, mean: float, deviation: float, most: int) -> np.ndarray:
    return np.clip(random.lognormal(mean, deviation, count), 1, most).astype(np.int64)


def _trace(rows: np.ndarray) -> Trace:
    found = sorted(Counter(map(tuple, rows.tolist())).items())
    dims = ("batch", "seq")[-rows.shape[1] :]
    return Trace(dims, tuple(sizes for sizes, _ in found), tuple(count for _, count in found))


def _cells(one: Result) -> list[object]:
    shares = [f"{value:.1%}" for value in (one.ours, one.least, one.powers, one.even)]
    return [one.name, one.shapes, one.buckets, *shares, f"{one.seconds:.1f}"]


if __name__ == "__main__":
    main()
