"""Search for a plan of a given height with OR-Tools' CP-SAT: strong where nothing may be wasted."""

from collections.abc import Sequence

from .sections import Sections


def search(sizes: Sequence[int], parts: Sections, height: int, seed: int, effort: float) -> list[int] | None:
    """Offsets of a plan of at most `height`, or None where `effort` (CP-SAT's deterministic seconds) found none.

    The rectangles do not overlap, and in each section what is alive lies apart along the offsets. One worker and a
    limit that counts work: the same input gives the same plan on any machine.
    """
    if max(sizes) > height:
        return None
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    starts = [model.new_int_var(0, height - size, "") for size in sizes]
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
