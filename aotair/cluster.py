"""How are recipes built at the same time? Each by workers of a Ray cluster, whose machines share the files; by several
where there are more machines than recipes."""

import asyncio
import contextlib
import logging
import os
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from aotair_runtime.errors import AotairError

from .builder import build_in_team, build_with_summary
from .errors import ProcessError
from .recipe.recipe import Recipe
from .summary import Listener, Outcome, Summary

log = logging.getLogger("aotair")

_PLACED = 20.0  # seconds in which the machines of a team have to be free
_LOOK = 1.0  # seconds between two looks at whether a worker is lost


def built_on_ray(recipes: Sequence[Recipe], outs: Sequence[Path], jobs: int | None = None) -> Iterator[Outcome]:
    """Build all recipes, and give each outcome as it comes. The cluster is the one that `RAY_ADDRESS` names or that
    runs on this machine; without one, Ray starts one here.

    A build takes `jobs` processors of one machine, by default its share of the cluster's; where there are twice as many
    machines as recipes, or more, so many of each of several machines. Recipes, checkpoints and `outs` have to lie where
    every machine finds them. The bytes are those of a build on one machine of the kind. Raises ProcessError where no
    machine has so many processors.
    """
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level=logging.WARNING)
    machines = _machines()
    count = max(1, len(machines) // len(recipes))
    jobs = _jobs(jobs, len(recipes), machines, count)
    with contextlib.ExitStack() as stack:
        runs = [
            stack.enter_context(_running(recipe, str(out.absolute()), jobs, count))
            for recipe, out in zip(recipes, outs, strict=True)
        ]
        left = list(runs)
        while left:
            (done,), left = ray.wait(left)
            yield _outcome(runs.index(done), done)


def _machines() -> list[int]:
    """The processors of each machine that has any, the most first."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray leaves it untyped
    found = [int(node["Resources"].get("CPU", 0)) for node in nodes if node["Alive"]]
    return sorted(filter(None, found), reverse=True) or [0]


def _jobs(asked: int | None, recipes: int, machines: Sequence[int], count: int) -> int:
    """How many processors of a machine each build takes, or of each of so many machines."""
    if asked is None:
        return max(1, machines[count * recipes - 1] if count > 1 else min(machines[0], sum(machines) // recipes))
    if asked > machines[0]:
        raise ProcessError(
            "no machine of the Ray cluster has so many processors",
            expected=f"at most {machines[0]}",
            got=f"jobs={asked}",
        )
    return asked


@contextlib.contextmanager
def _running(recipe: Recipe, out: str, jobs: int, count: int) -> Iterator["ray.ObjectRef[Summary | str]"]:
    """A build by one worker, or by a team of so many on machines of their own, where these are free."""
    asked = (recipe, out, jobs, [path for path in sys.path if path], os.getcwd())
    place = _placed(jobs, count) if count > 1 else None
    if place is None:
        yield ray.remote(num_cpus=jobs, max_retries=0)(_built).remote(*asked)
        return
    board: Any = ray.remote(num_cpus=0)(_Board).remote(count)
    task = ray.remote(num_cpus=jobs, max_retries=0)(_built_in_team)
    others: list[Any] = []
    try:
        for number in (*range(1, count), 0):  # the first hears of the others
            where = PlacementGroupSchedulingStrategy(place, placement_group_bundle_index=number)
            options = {"scheduling_strategy": where, "name": f"aotair build, worker {number}"}
            others.append(task.options(**options).remote(*asked, board, number, count, list(others)))
        *others, first = others
        yield first
    finally:
        for one in others:
            ray.cancel(one, force=True)
        ray.kill(board)
        remove_placement_group(place)


def _placed(jobs: int, count: int) -> PlacementGroup | None:
    """Room on so many machines; None where they are busy."""
    found: PlacementGroup = placement_group([{"CPU": jobs}] * count, strategy="STRICT_SPREAD")
    if found.wait(_PLACED):
        return found
    log.warning("%d machines are not free at the same time: a build takes one", count)
    remove_placement_group(found)
    return None


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


# ---- on a worker -----------------------------------------------------------------------------------------------------


def _built(recipe: Recipe, out: str, jobs: int, paths: Sequence[str], folder: str) -> Summary | str:
    """What was built, or why it could not be; imports and relative paths are those of who asks."""
    _be_where(paths, folder)
    try:
        return build_with_summary(recipe, out, Listener(), jobs=jobs)
    except AotairError as error:
        return str(error)


def _built_in_team(
    recipe: Recipe,
    out: str,
    jobs: int,
    paths: Sequence[str],
    folder: str,
    board: Any,
    number: int,
    count: int,
    others: Sequence[Any],
) -> Summary | str:
    """The same, as one of a team; "" where another one says it."""
    _be_where(paths, folder)
    try:
        return build_in_team(recipe, out, Listener(), _Workers(board, number, count, others), jobs) or ""
    except AotairError as error:
        return str(error)


def _be_where(paths: Sequence[str], folder: str) -> None:
    os.chdir(folder)
    sys.path[:] = [*dict.fromkeys((*paths, *sys.path))]


class _Workers:
    """A team of workers; the first looks after the `others`."""

    def __init__(self, board: Any, number: int, count: int, others: Sequence[Any]):
        self.number, self.count = number, count
        self._board, self._others, self._step = board, list(others), 0

    def exchange(self, mine: object) -> list[Any] | None:
        self._step += 1
        heard = self._board.give.remote(self._step, self.number, pickle.dumps(mine, pickle.HIGHEST_PROTOCOL))
        while not ray.wait([heard], timeout=_LOOK)[0]:
            if self._others and ray.wait(self._others, timeout=0)[0]:  # it has ended, and had more to say
                self._board.close.remote()
        try:
            said = ray.get(heard)
        except ray.exceptions.RayError as error:
            log.debug("the board of the team is lost: %s", error)
            return None
        return None if said is None else [pickle.loads(content) for content in said]


class _Board:
    """Where the workers of a team put what they give in each step, until all have taken it."""

    def __init__(self, count: int):
        self._count, self._open = count, True
        self._given: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
        self._taken: defaultdict[int, int] = defaultdict(int)
        self._changed = asyncio.Condition()

    async def give(self, step: int, number: int, content: bytes) -> list[bytes] | None:
        """What all give in this step, once they have; None where the board is closed before."""
        given = self._given[step]
        async with self._changed:
            given[number] = content
            self._changed.notify_all()
            await self._changed.wait_for(lambda: len(given) == self._count or not self._open)
        if len(given) < self._count:
            return None
        self._taken[step] += 1
        if self._taken[step] == self._count:
            del self._given[step], self._taken[step]
        return [given[one] for one in range(self._count)]

    async def close(self) -> None:
        """Nobody waits any more."""
        async with self._changed:
            self._open = False
            self._changed.notify_all()
