"""The buckets that serve a trace best: chosen within limits, shown with what fewer would waste, written if asked."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aotair_runtime.errors import AotairError
from aotair_runtime.format.text import table

from ..buckets.block import as_plain, block, write
from ..buckets.choose import best_buckets
from ..buckets.limits import Arena, fit_arena, most_buckets
from ..buckets.points import Bucket, Pick, Points, serve
from ..buckets.trace import Trace, read_trace
from ..recipe.entry import EntryJob, entry_jobs
from ..recipe.read import read_recipe
from ..recipe.recipe import Recipe


@dataclass(frozen=True)
class Wanted:
    """What the buckets are limited by; None: not at all. `artifact` is one built from the recipe."""

    most: int = 16
    captures: int | None = None
    memory: int | None = None
    build_seconds: float | None = None
    seconds_per_bucket: float | None = None
    artifact: Path | None = None


@dataclass(frozen=True)
class Served:
    """What one bucket does: requests (counted), and the share of its elements that is padding."""

    bucket: Bucket
    requests: int
    padding: float


@dataclass(frozen=True)
class Chosen:
    """The curve (a set for 1, 2, … buckets; None: cannot serve all), and beside it what the recipe has now."""

    trace: Trace
    curve: tuple[Pick | None, ...]
    now: tuple[int, int, int]  # the recipe's buckets, elements run in them, requests that none holds
    served: tuple[Served, ...]
    arena: Arena | None
    seconds_per_bucket: float | None
    place: tuple[str, ...] = ("buckets",)  # of the buckets in the recipe

    @property
    def elements(self) -> int:
        return sum(math.prod(sizes) * count for sizes, count in zip(self.trace.sizes, self.trace.counts))

    @property
    def pick(self) -> Pick:
        last = self.curve[-1]
        assert last is not None, "the largest set serves all, or there is no Chosen"
        return last

    @property
    def plain(self) -> dict[str, list[int]] | list[dict[str, int]]:
        return as_plain(self.trace.dims, self.pick.buckets)

    def as_dict(self) -> dict[str, object]:
        trace = {"requests": sum(self.trace.counts), "shapes": len(self.trace.sizes), "elements": self.elements}
        buckets, cost, missed = self.now
        now = {"buckets": buckets, "not_served": missed, "waste": None if missed else cost - self.elements}
        served = [
            {"bucket": dict(zip(self.trace.dims, one.bucket)), "requests": one.requests, "padding": one.padding}
            for one in self.served
        ]
        curve = [self._point(n, pick) for n, pick in enumerate(self.curve, 1) if pick]
        memory = None if self.arena is None else {"buckets": self.arena.buckets, "off": self.arena.off}
        chosen = self._point(len(self.pick.buckets), self.pick)
        chosen["serves"] = served
        return {
            "trace": trace,
            "now": now,
            "curve": curve,
            "chosen": chosen,
            "buckets": self.plain,
            "arena_fit": memory,
        }

    def text(self) -> str:
        head = ["buckets", "waste", "padding", "gap at most", "arena, estimated", "build seconds, estimated"]
        points = [self._point(n, pick) for n, pick in enumerate(self.curve, 1) if pick]
        rows = [
            [
                p["buckets"],
                f"{p['waste']:,}",
                f"{p['padding']:.2%}",
                _gap(p),
                _number(p["arena"]),
                _number(p["build_seconds"]),
            ]
            for p in points
        ]
        keep = [i for i in range(6) if i < 4 or any(row[i] for row in rows)]
        curve = table([head[i] for i in keep], [[row[i] for i in keep] for row in rows])
        dims = self.trace.dims
        serves = [
            [", ".join(f"{d}={s}" for d, s in zip(dims, one.bucket)), f"{one.requests:,}", f"{one.padding:.2%}"]
            for one in self.served
        ]
        parts = ["\n".join(self._remarks()), curve, f"chosen: {len(self.pick.buckets)} buckets"]
        parts += [table(["bucket", "requests", "padding"], serves), f"buckets:\n{block(self.plain)}"]
        return "\n\n".join(parts)

    def _point(self, number: int, pick: Pick) -> dict[str, Any]:
        waste, largest = pick.cost - self.elements, max(math.prod(bucket) for bucket in pick.buckets)
        arena = None if self.arena is None else self.arena.estimate(largest)
        seconds = None if self.seconds_per_bucket is None else self.seconds_per_bucket * number
        bound = max(0, pick.bound - self.elements)
        return {
            "buckets": number,
            "waste": waste,
            "padding": waste / pick.cost,
            "least_waste": bound,
            "gap": waste - bound,
            "largest_elements": largest,
            "arena": arena,
            "build_seconds": seconds,
        }

    def _remarks(self) -> list[str]:
        buckets, cost, missed = self.now
        shapes = f"{sum(self.trace.counts):,} requests of {len(self.trace.sizes):,} shapes, {self.elements:,} elements"
        now = f"{missed:,} requests that none holds" if missed else f"{1 - self.elements / cost:.2%} padding"
        lines = [
            shapes,
            f"the recipe's {buckets} buckets now: {now}",
            "the chosen hold what the trace has, and no more",
        ]
        if self.arena is not None:
            lines.append(
                f"arena: a line through {self.arena.buckets} buckets of the artifact, off by up to "
                f"{self.arena.off:.1%} there; the next build knows"
            )
        return lines


def chosen(trace_file: Path, recipe_file: Path, wanted: Wanted, entry: str | None = None) -> Chosen:
    """The best buckets for a trace within limits, of the entry point of that name where there are several. Raises
    AotairError where they cannot serve every request."""
    recipe = read_recipe(recipe_file)
    job = _entry(recipe, entry)
    dims = job.dims()
    if not dims:
        raise AotairError("the recipe has no dynamic dimension", where=job.where, fix="name one in an input's shape")
    if wanted.memory is not None and wanted.artifact is None:
        raise AotairError("--memory needs to know what buckets take", fix="build once and pass --artifact")
    most = most_buckets(wanted.most, wanted.captures, wanted.build_seconds, wanted.seconds_per_bucket)
    arena = None if wanted.artifact is None else fit_arena(wanted.artifact, recipe.name, job)
    ceiling = None if wanted.memory is None or arena is None else arena.elements(wanted.memory)
    trace = read_trace(trace_file, dims)
    curve = tuple(best_buckets(trace, [job.paddable(dim) for dim in dims], most, ceiling))
    last = curve[-1]
    assert last is not None, "best_buckets raises where no set serves all"
    served, _, _ = _served(trace, job, last.buckets)
    _, cost, missed = _served(trace, job, job.bucket_sizes())
    now = (len(job.bucket_sizes()), cost, missed)
    place = ("entry_points", job.entry, "buckets") if entry is not None else ("buckets",)
    return Chosen(trace, curve, now, served, arena, wanted.seconds_per_bucket, place)


def _entry(recipe: Recipe, name: str | None) -> EntryJob:
    """One entry point of the recipe."""
    if not recipe.entry_points and name is None:
        return entry_jobs(recipe)[0]
    if name not in recipe.entry_points:
        raise AotairError(
            "the recipe has several entry points" if recipe.entry_points else "the recipe has no entry_points",
            where=recipe.where,
            expected=", ".join(recipe.entry_points) or "no --entry",
            got=name or "no --entry",
            fix="name the one that the trace is of: --entry NAME" if recipe.entry_points else "leave out --entry",
        )
    return next(one for one in entry_jobs(recipe) if one.entry == name)


def write_chosen(recipe_file: Path, found: Chosen) -> None:
    """Write the chosen buckets into the recipe."""
    write(recipe_file, found.plain, found.place)


def _served(trace: Trace, job: EntryJob, buckets: tuple[Bucket, ...]) -> tuple[tuple[Served, ...], int, int]:
    """What each bucket serves, the elements run in all, and the requests that none holds."""
    fixed = [axis for axis, dim in enumerate(trace.dims) if not job.paddable(dim)]
    parts: dict[Bucket, list[int]] = {}
    for number, sizes in enumerate(trace.sizes):
        parts.setdefault(tuple(sizes[axis] for axis in fixed), []).append(number)
    found, missed = {bucket: [0, 0] for bucket in buckets}, 0
    for key, members in parts.items():
        points = Points(*(np.array([values[n] for n in members], np.int64) for values in (trace.sizes, trace.counts)))
        own = sorted(bucket for bucket in buckets if tuple(bucket[axis] for axis in fixed) == key)
        which, _ = serve(points, own)
        missed += int(points.weights[which < 0].sum())
        for index, bucket in enumerate(own):
            held = Points(points.sizes[which == index], points.weights[which == index])
            found[bucket] = [int(held.weights.sum()), held.elements]
    cost = sum(math.prod(bucket) * requests for bucket, (requests, _) in found.items())
    return (
        tuple(
            Served(bucket, requests, 1 - real / (math.prod(bucket) * requests) if requests else 0.0)
            for bucket, (requests, real) in sorted(found.items())
        ),
        cost,
        missed,
    )


def _gap(point: dict[str, Any]) -> str:
    return "exact" if not point["gap"] else f"{point['gap']:,} ({point['gap'] / point['waste']:.1%} of it)"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
