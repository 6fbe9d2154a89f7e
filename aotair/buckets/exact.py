"""Is a set of corners the best? The few corners that a better one could take, searched with OR-Tools' CP-SAT."""

import itertools
import math

import numpy as np

from .bound import Dual, Relaxed
from .points import Buckets

_CORNERS, _PAIRS, _LOOKED = 400, 30_000, 2_000_000
_LARGEST = 1 << 50  # CP-SAT's own bounds are floating point


def settle_exactly(relaxed: Relaxed, dual: Dual, cost: int, effort: float) -> tuple[int, Buckets | None]:
    """A bound for sets of `dual.count` corners, no worse than the dual's, and a cheaper set than `cost`, if any.

    A corner that is in a set raises the dual's bound by what its gain lacks to the count-th largest; where that comes
    to `cost`, no cheaper set has it. `effort` is CP-SAT's deterministic seconds, with one worker.
    """
    ordered = np.sort(dual.gains)[::-1]
    last = int(ordered[dual.count - 1]) if len(ordered) >= dual.count else 0
    kept = np.flatnonzero(dual.value + last - dual.gains < cost)
    if not relaxed.exact or len(kept) > _CORNERS or len(kept) * len(relaxed.floors) > _LOOKED or cost > _LARGEST:
        return dual.bound, None
    fits: np.ndarray = np.all(relaxed.cells.sizes[:, None, :] <= relaxed.grid[None, kept, :], axis=2)
    if int(fits.sum()) > _PAIRS:
        return dual.bound, None
    if not fits.any(axis=1).all():
        return cost, None
    return _search(relaxed, dual, kept, fits, cost, effort)


def _search(
    relaxed: Relaxed, dual: Dual, kept: np.ndarray, fits: np.ndarray, cost: int, effort: float
) -> tuple[int, Buckets | None]:
    """Each request costs at least its cheapest corner; and the step to the next, unless one so far is taken."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    taken = [model.new_bool_var("") for _ in kept]
    model.add(sum(taken) <= dual.count)
    fixed, terms = 0, []
    for request, weight in enumerate(relaxed.cells.weights):
        held = np.flatnonzero(fits[request])
        levels = relaxed.volumes[kept[held]]
        fixed += int(weight * levels[0])
        model.add_bool_or([taken[index] for index in held])
        above: int | cp_model.IntVar = 1
        starts = [0, *(int(one) + 1 for one in np.flatnonzero(np.diff(levels)))]
        for start, end in itertools.pairwise(starts):
            more = model.new_bool_var("")
            model.add(sum(taken[index] for index in held[start:end]) + more >= above)
            terms.append(int(weight * (levels[end] - levels[start])) * more)
            above = more
    model.add(sum(terms) <= cost - 1 - fixed)
    model.minimize(sum(terms))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.linearization_level = 2  # the relaxation does most of the work
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return cost, None
    bound = max(dual.bound, min(cost, fixed + math.floor(solver.best_objective_bound)))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return bound, None
    found = tuple(tuple(map(int, relaxed.grid[kept[i]])) for i, one in enumerate(taken) if solver.value(one))
    return bound, found
