"""How are several recipes built at the same time? Each by a worker of a Ray cluster, whose machines share the files."""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from aotair_runtime.errors import AotairError

from .builder import build_with_summary
from .errors import ProcessError
from .recipe.recipe import Recipe
from .summary import Listener, Outcome, Summary


def built_on_ray(recipes: Sequence[Recipe], outs: Sequence[Path], jobs: int | None = None) -> Iterator[Outcome]:
    """Build all recipes, and give each outcome as it comes. The cluster is the one that `RAY_ADDRESS` names or that
    runs on this machine; without one, Ray starts one here.

    A build takes `jobs` processors of one machine, by default its share of the cluster's. Recipes, checkpoints and
    `outs` have to lie where every machine finds them. The bytes are those of a build on one machine of the kind. Raises
    ProcessError where no machine has so many processors.
    """
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level=logging.WARNING)
    jobs = _jobs(jobs, len(recipes))
    task = ray.remote(num_cpus=jobs, max_retries=0)(_built)
    paths = [path for path in sys.path if path]
    runs = [
        task.remote(recipe, str(out.absolute()), jobs, paths, os.getcwd())
        for recipe, out in zip(recipes, outs, strict=True)
    ]
    left = list(runs)
    while left:
        (done,), left = ray.wait(left)
        yield _outcome(runs.index(done), done)


def _jobs(asked: int | None, recipes: int) -> int:
    """How many processors of a machine each build takes."""
    machines = [int(node["Resources"].get("CPU", 0)) for node in _nodes() if node["Alive"]]
    if asked is None:
        return max(1, min(max(machines), sum(machines) // recipes))
    if asked > max(machines):
        raise ProcessError(
            "no machine of the Ray cluster has so many processors",
            expected=f"at most {max(machines)}",
            got=f"jobs={asked}",
        )
    return asked


def _nodes() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray leaves it untyped
    return found


def _outcome(number: int, run: "ray.ObjectRef[Summary | str]") -> Outcome:
    try:
        found = ray.get(run)
    except ray.exceptions.RayError as error:
        return Outcome(number, None, f"its worker failed: {error}")
    if isinstance(found, str):
        return Outcome(number, None, found)
    if not Path(found.artifact).is_dir():
        fix = "the machines of the cluster have to share the files"
        return Outcome(number, None, f"{found.artifact}: it was written on another machine\n  fix: {fix}")
    return Outcome(number, found)


def _built(recipe: Recipe, out: str, jobs: int, paths: Sequence[str], folder: str) -> Summary | str:
    """On a worker: what was built, or why it could not be; imports and relative paths are those of who asks."""
    os.chdir(folder)
    sys.path[:] = [*dict.fromkeys((*paths, *sys.path))]
    try:
        return build_with_summary(recipe, out, Listener(), jobs=jobs)
    except AotairError as error:
        return str(error)
