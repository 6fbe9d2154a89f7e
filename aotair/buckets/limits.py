"""How many buckets may there be, and how large? What the number of buckets, captures, memory and build time allow."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aotair_runtime.artifact.open import read_program
from aotair_runtime.errors import AotairError

from ..recipe.entry import EntryJob


@dataclass(frozen=True)
class Arena:
    """An estimate of the arena bytes of a bucket, `fixed + each * elements`, fitted to those of an artifact.

    `off` is the largest relative error at the `buckets` that it was fitted to.
    """

    fixed: float
    each: float
    buckets: int
    off: float

    def estimate(self, elements: int) -> int:
        return max(0, math.ceil(self.fixed + self.each * elements))

    def elements(self, memory: int) -> int:
        """The most elements whose estimate is no more than `memory`; 0 where there are none."""
        most = max(0, math.floor((memory - self.fixed) / self.each))
        while most and self.estimate(most) > memory:
            most -= 1
        return most


def most_buckets(most: int, captures: int | None, build_seconds: float | None, each: float | None) -> int:
    """The smallest of the limits. Raises AotairError where not even one bucket is left."""
    limits = {"--most": most}
    if captures is not None:
        limits["--captures"] = captures
    if build_seconds is not None:
        if each is None:
            raise AotairError(
                "--build-seconds needs to know what a bucket takes",
                fix="build once, divide its seconds by its buckets, and pass --seconds-per-bucket",
            )
        limits["--build-seconds"] = int(min(build_seconds / _positive(each, "--seconds-per-bucket"), 1e9))
    name = min(limits, key=limits.__getitem__)
    if limits[name] < 1:
        raise AotairError(f"{name} leaves no bucket", expected="at least one bucket", got=f"{limits[name]} buckets")
    return limits[name]


def fit_arena(artifact: Path, name: str, job: EntryJob) -> Arena:
    """The estimate by least squares. Raises AotairError where the artifact is not one of this recipe's inputs."""
    program = read_program(artifact)
    dims = job.dims()
    entry = next((e for e in program.entry_points if tuple(dim.name for dim in e.dims) == dims), None)
    if entry is None or program.name != name:
        found = "; ".join(", ".join(dim.name for dim in e.dims) or "static" for e in program.entry_points)
        raise AotairError(
            "the artifact is not one of this recipe",
            where=str(artifact),
            expected=f"{name} with the dynamic dimensions {', '.join(dims)}",
            got=f"{program.name} with {found}",
            fix="pass the artifact that was built from the recipe",
        )
    elements = np.array([math.prod(bucket.sizes) for bucket in entry.buckets], float)
    heights = np.array([bucket.height for bucket in entry.buckets], float)
    if len(set(elements)) < 2:
        raise AotairError(
            "no estimate of memory: the artifact's buckets are all of one size",
            where=str(artifact),
            expected="buckets of two sizes or more",
            fix="build once with a small and a large bucket",
        )
    design = np.stack([np.ones(len(elements)), elements], axis=1)
    fixed, each = map(float, np.linalg.lstsq(design, heights, rcond=None)[0])
    if each <= 0:
        raise AotairError("no estimate of memory: larger buckets do not take more", where=str(artifact))
    off = float((np.abs(design @ [fixed, each] - heights) / np.maximum(heights, 1)).max())
    return Arena(fixed, each, len(elements), off)


def _positive(value: float, name: str) -> float:
    if not value > 0 or math.isinf(value):
        raise AotairError(f"{name} must be more than 0", got=str(value))
    return value
