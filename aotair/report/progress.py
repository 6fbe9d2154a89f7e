"""What a build says while it runs, on standard error, and the table that ends it."""

import time
from types import TracebackType

from rich.console import Console
from rich.status import Status

from aotair_runtime.format.text import table

from ..summary import Listener, Summary

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
_WORST = 5  # layers that the table names


class Progress(Listener):
    """A live line on a terminal; elsewhere one line for each finished stage."""

    def __init__(self, *, quiet: bool = False):
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._status: Status | None = None
        self._name, self._start, self._count = "", 0.0, ""

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._finish()
        if self._status is not None:
            self._status.stop()

    def stage(self, name: str) -> None:
        self._finish()
        self._name, self._start, self._count = name, time.perf_counter(), ""
        self._show()

    def bucket(self, done: int, total: int) -> None:
        self._count = f", {total} buckets" if done == total else f", bucket {done + 1} of {total}"
        self._show()

    def _show(self) -> None:
        if self._status is not None:
            seconds = time.perf_counter() - self._start
            self._status.update(f"{_SAYS[self._name]}{self._count} ({seconds:.0f} s)")

    def _finish(self) -> None:
        if self._name:
            seconds = time.perf_counter() - self._start
            self._console.print(f"{_SAYS[self._name]}{self._count}: {seconds:.1f} s")
        self._name = ""


def _quantised(summary: Summary) -> list[list[str]]:
    made = summary.quantised
    if made is None:
        return []
    worst = list(made.layers.items())[:_WORST]
    return [
        [f"linear layers in {made.scheme}", f"{made.linears}"],
        [f"its error over {made.source}, largest", f"{made.max_abs_error:.2e}"],
        ["its error, relative; cosine", f"{made.relative_error:.2e}; {made.cosine:.6f}"],
        *([f"worst layers: {name}", f"{error:.2e}"] for name, error in worst),
        *([["further layers", f"{len(made.layers) - _WORST}, in report.html"]] if len(made.layers) > _WORST else []),
    ]


def _budget(budget: int | float | None) -> str:
    if isinstance(budget, float):
        return f" (budget: {budget:.0%} of the device, checked when loaded)"
    return "" if budget is None else f" of {budget:,}"


def summary_table(summary: Summary) -> str:
    """The table that ends a build."""
    rows = [
        ["graph nodes before / after passes", f"{summary.nodes_before} / {summary.nodes_after}"],
        *([f"rewrites: {name}", f"{count}"] for name, count in summary.rewrites.items()),
        *([f"near misses: {name}", f"{count}"] for name, count in summary.misses.items()),
        *_quantised(summary),
        *([f"graph {number}", why] for number, why in enumerate(summary.graphs, 2)),
        ["buckets, each proved", f"{summary.buckets}"],
        ["padding runs, each neutral", f"{summary.padding_runs}"],
        ["largest error against the original", f"{summary.max_abs_error:.2e}"],
        ["arena bytes, for all buckets", f"{summary.arena:,}"],
        ["bytes of the weights file", f"{summary.weights:,}"],
        ["memory bytes on the device at most", f"{summary.memory:,}{_budget(summary.budget)}"],
        *([f"nodes import, and allow {namespace}", package] for namespace, package in summary.packages.items()),
        ["program bytes", f"{summary.program:,}"],
        *([f"seconds: {stage}", f"{seconds:.1f}"] for stage, seconds in summary.seconds.items()),
        ["seconds: in all", f"{sum(summary.seconds.values()):.1f}"],
    ]
    return table(["built " + summary.artifact, ""], rows)
