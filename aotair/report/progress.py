"""What a build says while it runs, on standard error, and the table that ends it."""

import re
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task
from rich.progress import Progress as Bar
from rich.text import Text

from aotair_runtime.format.text import table

from ..summary import Listener, SharedOut, Summary

_SAYS = {
    "recipe": "reading the recipe",
    "model": "making the original model",
    "export": "exporting one graph with symbolic sizes",
    "passes": "optimising the graph",
    "buckets": "specialising and planning each bucket",
    "like": "taking another artifact's programs",
    "prove": "proving each bucket against the original",
    "pack": "writing the artifact",
    "check": "replaying what was written",
}
# What part of a build each stage takes, about; what comes of it is corrected by the stages that are done.
_SHARES = {
    "recipe": 1,
    "model": 5,
    "export": 40,
    "passes": 5,
    "buckets": 12,
    "like": 10,
    "prove": 28,
    "pack": 2,
    "check": 7,
}
_COUNTED = {"prove": "step"}  # what is counted, where that is no bucket
_WORST = 5  # layers that the table names


class Left:
    """How much of a build is done, and how long the rest will take."""

    def __init__(self) -> None:
        self._done, self._seconds = 0.0, 0.0
        self._name, self._share = "", 0.0

    def stage(self, name: str, seconds: float) -> None:
        """A stage begins; the one before took so many seconds."""
        if self._name:
            self._done += _SHARES[self._name]
            self._seconds += seconds
        self._name, self._share = name, 0.0

    def counted(self, done: int, total: int) -> None:
        self._share = done / max(1, total)

    def now(self, seconds: float) -> tuple[float, float | None]:
        """The share of the build that is done, and the seconds that are left, so many seconds into a stage; None where
        too little has been done to tell."""
        here = _SHARES.get(self._name, 0)
        pace = self._seconds / self._done if self._done else 0.0  # seconds for a hundredth
        share = self._share
        if pace and not share:  # of what counts nothing, as far as it should have come
            share = min(0.9, seconds / (pace * max(1, here)))
        done = self._done + here * share
        if done < _SHARES["recipe"] + _SHARES["model"]:
            return done / 100, None
        return min(1.0, done / 100), (self._seconds + seconds) / done * max(0.0, 100 - done)


class _LeftColumn(ProgressColumn):
    """Drawn anew while the build goes on."""

    def __init__(self, progress: "Progress"):
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        return Text(self._progress.line())


class Progress(Listener):
    """A live bar on a terminal, with the time left; elsewhere one line for each finished stage."""

    def __init__(self, *, quiet: bool = False):
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._bar: Bar | None = None
        self._name, self._start, self._count, self._left = "", 0.0, "", Left()

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            columns = (SpinnerColumn(), BarColumn(30), _LeftColumn(self))
            self._bar = Bar(*columns, console=self._console, transient=True)
            self._bar.add_task("", total=100)
            self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._finish()
        if self._bar is not None:
            self._bar.stop()

    def stage(self, name: str) -> None:
        self._left.stage(name, self._finish())
        self._name, self._start, self._count = name, time.perf_counter(), ""

    def bucket(self, done: int, total: int) -> None:
        counted = _COUNTED.get(self._name, "bucket")
        self._count = f", {total} {counted}s" if done == total else f", {counted} {done + 1} of {total}"
        self._left.counted(done, total)

    def line(self) -> str:
        """What is being done, and how long the rest takes; moves the bar."""
        if not self._name:
            return ""
        seconds = time.perf_counter() - self._start
        done, left = self._left.now(seconds)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=100 * done)
        about = "" if left is None else f", about {left:.0f} s left"
        return f"{_SAYS[self._name]}{self._count} ({seconds:.0f} s{about})"

    def _finish(self) -> float:
        """Says what the stage took, and returns it."""
        if not self._name:
            return 0.0
        seconds = time.perf_counter() - self._start
        self._console.print(f"{_SAYS[self._name]}{self._count}: {seconds:.1f} s")
        self._name = ""
        return seconds


def _quantised(summary: Summary) -> list[list[str]]:
    made = summary.quantised
    if made is None:
        return []
    worst = list(made.layers.items())[:_WORST]
    return [
        *([what, f"{number}"] for what, number in made.kinds()),
        [f"its error over {made.source}, largest", f"{made.max_abs_error:.2e}"],
        ["its error, relative; cosine", f"{made.relative_error:.2e}; {made.cosine:.6f}"],
        *([f"worst layers: {name}", f"{error:.2e}"] for name, error in worst),
        *([["further layers", f"{len(made.layers) - _WORST}, in report.html"]] if len(made.layers) > _WORST else []),
    ]


def _budget(budget: int | float | None) -> str:
    if isinstance(budget, float):
        return f" (budget: {budget:.0%} of the device, checked when loaded)"
    return "" if budget is None else f" of {budget:,}"


def _shared_out(summary: Summary) -> list[list[str]]:
    """What ranks share out, for each mesh, and what each of them has whole."""
    rows = [] if summary.shared_out is None else _ranks(summary.shared_out)
    for one in summary.meshes:
        rows += [["program for one rank", ""]] if one.shared_out is None else _ranks(one.shared_out)
        rows += [["its arena bytes / memory bytes at most", f"{one.arena:,} / {one.memory:,}"]]
        rows += [["its largest error against the original", f"{one.max_abs_error:.2e}"]]
    return rows


def _ranks(shared: SharedOut) -> list[list[str]]:
    """Layers that are alike are one row."""
    rows = [["ranks, proved together", shared.mesh]]
    rows += [[f"shared out: {style}", f"{count}"] for style, count in shared.styles.items()]
    rows += [["bytes of a rank's weights / on every rank", f"{shared.weights:,} / {shared.whole:,}"]]
    alike: dict[tuple[str, str], int] = {}
    for name, why in shared.kept.items():
        key = (re.sub(r"\d+", "*", name), why)
        alike[key] = alike.get(key, 0) + 1
    return rows + [[f"whole on every rank: {name} ({count})", why] for (name, why), count in alike.items()]


def summary_table(summary: Summary) -> str:
    """The table that ends a build."""
    rows = [
        ["graph nodes before / after passes", f"{summary.nodes_before} / {summary.nodes_after}"],
        *([f"rewrites: {name}", f"{count}"] for name, count in summary.rewrites.items()),
        *([f"near misses: {name}", f"{count}"] for name, count in summary.misses.items()),
        *_quantised(summary),
        *([f"graph {number}", why] for number, why in enumerate(summary.graphs, 2)),
        *_shared_out(summary),
        ["buckets, each proved" + (" by a sample" if summary.sampled else ""), f"{summary.buckets}"],
        ["padding runs, each neutral", f"{summary.padding_runs}"],
        ["largest error against the original", f"{summary.max_abs_error:.2e}"],
        ["largest error, in units in the last place", f"{summary.units:.3g}"],
        ["arena bytes, for all buckets", f"{summary.arena:,}"],
        ["bytes of the weights file", f"{summary.weights:,}"],
        ["memory bytes on the device at most", f"{summary.memory:,}{_budget(summary.budget)}"],
        *([f"nodes import, and allow {namespace}", package] for namespace, package in summary.packages.items()),
        ["program bytes", f"{summary.program:,}"],
        *([f"seconds: {stage}", f"{seconds:.1f}"] for stage, seconds in summary.seconds.items()),
        ["seconds: in all", f"{sum(summary.seconds.values()):.1f}"],
    ]
    return table(["built " + summary.artifact, ""], rows)
