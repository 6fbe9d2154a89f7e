"""How near the arena planner comes to the lower bound on hard cases and on real traces, and how long it takes.

Peer: greedy by size, as TensorFlow Lite and ExecuTorch have it. The cases are files of MiniMalloc's format (columns id,
lower, upper, size; upper excluded), in the folder given.
"""

import math
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from aotair.plan.check import violations
from aotair.plan.interval import columns
from aotair.plan.search import greedy
from aotair.plan.search.arena import Interval, plan_arena
from aotair.tools.intervals import read_intervals
from aotair_runtime.format.text import table

from .common import Row, options, report

EFFORT = 10  # less than a minute for a case, here
_TRACES = {"resnet50": 5, "pangu_2.6B": 60}  # seconds


@dataclass(frozen=True)
class Result:
    name: str
    buffers: int
    bound: int
    greedy: float
    height: float
    algorithm: str
    seconds: float


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("folder", type=Path, help="a folder of CSV files")
    parser.add_argument("--effort", type=float, default=EFFORT)
    parser.add_argument("--workers", type=int, default=2, help="cases at a time")
    given = parser.parse_args()
    files = sorted(given.folder.glob("*.csv"))
    with ProcessPoolExecutor(given.workers) as pool:
        results = list(pool.map(solve, files, [given.effort] * len(files)))
    head = ["case", "buffers", "lower bound", "greedy by size", "height / bound", "algorithm", "seconds"]
    print(table(head, [_cells(result) for result in results]), "\n")
    report(_rows(results), given.json)


def solve(file: Path, effort: float) -> Result:
    """Plan one file, and check the plan."""
    intervals = list(read_intervals(file).values())
    start = time.perf_counter()
    plan = plan_arena(intervals, 1, effort)
    seconds = time.perf_counter() - start
    if wrong := violations(intervals, plan, 1):
        raise RuntimeError(f"{file.name}: {wrong[0]}")
    name = file.name.removesuffix(".csv").partition(".1048576")[0]
    peer = _by_size(intervals) / plan.lower_bound
    return Result(name, len(intervals), plan.lower_bound, peer, plan.height / plan.lower_bound, plan.algorithm, seconds)


def _by_size(intervals: Sequence[Interval]) -> int:
    items = columns(intervals, 1)
    return int((greedy.place(items, greedy.order_of("greedy by size", items)) + items.sizes).max())


def _rows(results: Sequence[Result]) -> list[Row]:
    traces = [result for result in results if result.name in _TRACES]
    hard = [result for result in results if result.name not in _TRACES]
    rows = [
        Row("hard cases planned at the lower bound", 8, sum(r.height == 1 for r in hard), f"of {len(hard)}", "", True),
        Row("hard cases, height / bound, geometric mean", 1.03, _mean([r.height for r in hard]), "x",
            f"greedy by size {_mean([r.greedy for r in hard]):.3f}"),
        Row("hard cases, longest", 60, max(r.seconds for r in hard), "s"),
    ]  # fmt: skip
    for r in traces:
        rows.append(Row(f"{r.name}, height / bound", 1, r.height, "x", f"greedy by size {r.greedy:.4f}"))
        rows.append(Row(f"{r.name}, {r.buffers:,} buffers", _TRACES[r.name], r.seconds, "s"))
    return rows


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _cells(r: Result) -> list[str]:
    return [r.name, f"{r.buffers:,}", f"{r.bound:,}", f"{r.greedy:.4f}", f"{r.height:.4f}", r.algorithm,
            f"{r.seconds:.1f}"]  # fmt: skip


if __name__ == "__main__":
    main()
