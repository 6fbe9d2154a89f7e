"""Search for a plan of a given height with OR-Tools' CP-SAT: strong where nothing may be wasted."""

import numpy as np

from ..interval import Columns
from .sections import Sections


def search_packings(items: Columns, parts: Sections, height: int, seed: int, effort: float) -> list[int] | None:
    """Offsets of a plan of at most `height`, or None where `effort` (CP-SAT's deterministic seconds) found none.

    The rectangles do not overlap, and in each section what is alive lies apart along the offsets. One worker and a
    limit that counts work: the same input gives the same plan on any machine.
    """
    if (items.sizes + np.maximum(items.fixed, 0)).max() > height:
        return None
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    sizes, fixed, alignments = items.sizes.tolist(), items.fixed.tolist(), items.alignments.tolist()
    starts = [
        at if at >= 0 else step * model.new_int_var(0, (height - size) // step, "")
        for size, at, step in zip(sizes, fixed, alignments)
    ]
    offsets = [model.new_fixed_size_interval_var(start, size, "") for start, size in zip(starts, sizes)]
    times = [model.new_fixed_size_interval_var(a, b - a, "") for a, b in zip(parts.low, parts.high)]
    model.add_no_overlap_2d(times, offsets)
    for members in parts.members():
        model.add_no_overlap([offsets[index] for index in members])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.randomize_search = seed > 0
    solver.parameters.max_deterministic_time = effort
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return [solver.value(start) for start in starts]
