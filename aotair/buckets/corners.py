"""Good buckets along several dimensions: corners added greedily, exchanged, and moved until nothing improves.

The work is counted, so that the same trace gives the same buckets on any machine.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from . import chain
from .points import Buckets, Points, cost_of, serve, shrunk, total, volume

_DENSE = 200_000  # requests times corners that the exchanges look at
_EXCHANGES = 600_000_000  # entries of that table looked at, for all numbers of buckets together
_MOVES = 300_000_000  # requests looked at while coordinates move, for all numbers of buckets together
_LINES = 128  # sizes of a dimension that the table has at the most
_REACH = 24  # observed sizes that a coordinate may move up or down at once


def lines(points: Points, axis: int, most: int) -> list[np.ndarray]:
    """For 1, 2, … `most` the observed sizes of a dimension that waste least when its others are rounded up to them."""
    values, inverse = np.unique(points.sizes[:, axis], return_inverse=True)
    others = volume(np.delete(points.sizes, axis, axis=1))
    weights = np.bincount(inverse.ravel(), points.weights * others.astype(float), len(values))
    whole = np.maximum(1, weights / weights.sum() * 1e9).astype(np.int64)
    return [values[ends] for ends, _ in chain.splits(values, whole, most)]


def corners(sizes: np.ndarray, along: Sequence[np.ndarray], ceiling: int | None) -> np.ndarray:
    """Every corner that is the smallest to hold some of the requests, with at most `ceiling` elements."""
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*along, indexing="ij")], axis=1)
    if ceiling is not None:
        grid = grid[volume(grid) <= ceiling]
    tight = np.ones(len(grid), bool)
    for axis in range(sizes.shape[1]):
        for value in np.unique(sizes[:, axis]):
            at = np.flatnonzero((grid[:, axis] == value) & tight)
            others = np.unique(np.delete(sizes[sizes[:, axis] == value], axis, axis=1), axis=0)
            wanted = np.delete(grid[at], axis, axis=1)
            held = np.zeros(len(at), bool)
            for other in others:
                held |= (wanted >= other).all(axis=1)
            tight[at[~held]] = False
    return grid[tight]


def sets(points: Points, most: int, ceiling: int | None) -> list[Buckets | None]:
    """A good set for 1, 2, … `most` buckets; None where none that serves every request was found."""
    rounded, along = _rounded(points)
    grid = corners(rounded.sizes, along, ceiling)
    table = _table(rounded, grid)
    products = _products(points, most, ceiling)
    found: list[Buckets | None] = []
    chosen: list[int] = []
    for count in range(1, most + 1):
        if len(grid):
            chosen = _exchanged(table, _added(table, chosen), _EXCHANGES // most)
        starts = [tuple(tuple(map(int, grid[index])) for index in chosen), products[count - 1]]
        starts.append(found[-1] if found else None)
        found.append(best(points, starts, _MOVES // most, ceiling))
    return found


def best(points: Points, starts: Sequence[Buckets | None], work: int, ceiling: int | None) -> Buckets | None:
    """The cheapest that the coordinates of these sets can be moved to."""
    known = dict.fromkeys(shrunk(points, start) for start in starts if start and total(points, start) is not None)
    ended = {}
    for smaller in known:
        moved = _moved(points, smaller, work // len(known), ceiling)
        ended[moved] = cost_of(points, moved)
    return min(ended, key=lambda one: (ended[one], len(one), one), default=None)


def _rounded(points: Points) -> tuple[Points, list[np.ndarray]]:
    """Requests rounded up to few enough sizes for a table, and these sizes."""
    found = [lines(points, axis, _LINES) for axis in range(len(points.sizes.T))]
    limits = [len(one) for one in found]
    while True:
        along = [one[limit - 1] for one, limit in zip(found, limits)]
        up = [axis[np.searchsorted(axis, column)] for axis, column in zip(along, points.sizes.T)]
        sizes, inverse = np.unique(np.stack(up, axis=1), axis=0, return_inverse=True)
        if len(sizes) * int(np.prod([len(axis) for axis in along], dtype=np.float64)) <= _DENSE or max(limits) <= 2:
            weights = np.zeros(len(sizes), np.int64)
            np.add.at(weights, inverse.ravel(), points.weights)
            return Points(sizes, weights), along
        largest = limits.index(max(limits))
        limits[largest] = max(2, limits[largest] * 4 // 5)


def _table(points: Points, grid: np.ndarray) -> np.ndarray:
    """What each request costs in each corner; where it does not fit, far more than any corner."""
    volumes = volume(grid).astype(float)
    fits = (points.sizes[:, None, :] <= grid[None, :, :]).all(axis=2)
    costs: np.ndarray = np.where(fits, volumes, 1e4 * volumes.max(initial=1.0)) * points.weights[:, None]
    return costs


def _added(table: np.ndarray, chosen: list[int]) -> list[int]:
    """One corner more: the one that saves most."""
    if not chosen:
        return [int(table.sum(axis=0).argmin())]
    now = table[:, chosen].min(axis=1)
    saved = np.maximum(now[:, None] - table, 0).sum(axis=0)
    return chosen if saved.max() <= 0 else [*chosen, int(saved.argmax())]


def _exchanged(table: np.ndarray, chosen: list[int], work: int) -> list[int]:
    """Corners exchanged one for one, each for the best other, until none improves or the work is done."""
    chosen, turn, still = list(chosen), 0, 0
    now = table[:, chosen].min(axis=1).sum()
    while still < len(chosen) and work > 0:
        place = turn % len(chosen)
        rest = [index for number, index in enumerate(chosen) if number != place]
        without = table[:, rest].min(axis=1) if rest else np.full(len(table), np.inf)
        costs = np.minimum(without[:, None], table).sum(axis=0)
        other = int(costs.argmin())
        work, turn, still = work - table.size, turn + 1, still + 1
        if costs[other] < now * (1 - 1e-12):
            chosen[place], now, still = other, costs[other], 0
    return chosen


def _moved(points: Points, buckets: Buckets, work: int, ceiling: int | None) -> Buckets:
    """Coordinates moved one at a time to the best observed size near, until none improves or the work is done."""
    known, cost = buckets, cost_of(points, buckets)
    values = [np.unique(column) for column in points.sizes.T]
    improved = True
    while improved and work > 0:
        improved = False
        for place, axis in itertools.product(range(len(known)), range(len(values))):
            if work <= 0 or place >= len(known) or len(values[axis]) == 1:
                continue
            tried, spent = _slid(points, known, place, axis, values[axis], ceiling)
            work -= spent
            new = total(points, tried)
            if new is not None and new < cost:
                known = shrunk(points, tried)
                cost, improved = cost_of(points, known), True
    return known


def _slid(
    points: Points, buckets: Buckets, place: int, axis: int, values: np.ndarray, ceiling: int | None
) -> tuple[Buckets, int]:
    """The buckets with one coordinate at the best observed size near; and the requests that were looked at."""
    bucket = np.array(buckets[place], np.int64)
    rest = buckets[:place] + buckets[place + 1 :]
    number, unit = serve(points, rest)
    at = int(np.searchsorted(values, bucket[axis]))
    near = values[max(0, at - _REACH) : at + _REACH + 1]
    elements = near * int(volume(np.delete(bucket, axis)))
    others = (np.delete(points.sizes, axis, axis=1) <= np.delete(bucket, axis)).all(axis=1)
    size, weight = points.sizes[others, axis], points.weights[others].astype(float)
    costs = np.where(number < 0, 1e4 * float(elements.max()), unit)[others]
    saved = np.maximum(costs[None, :] - elements[:, None], 0) * (size[None, :] <= near[:, None])
    gains = saved @ weight
    if ceiling is not None:
        gains[elements > ceiling] = -1
    bucket[axis] = near[int(gains.argmax())]
    changed = tuple(map(int, bucket))
    return tuple(sorted({*rest, changed})), 2 * len(buckets) * len(points.weights) + saved.size


def _products(points: Points, most: int, ceiling: int | None) -> list[Buckets | None]:
    """For 1, 2, … `most` buckets the best product of sizes chosen along each dimension alone."""
    found = [lines(points, axis, most) for axis in range(len(points.sizes.T))]
    tried: dict[int, tuple[int, Buckets]] = {}
    for along in itertools.product(*found):
        size = int(np.prod([len(axis) for axis in along], dtype=np.float64))
        if size > most:
            continue
        buckets = tuple(tuple(map(int, one)) for one in itertools.product(*along))
        if ceiling is not None:
            buckets = tuple(one for one in buckets if int(volume(np.array(one, np.int64))) <= ceiling)
        cost = total(points, buckets) if buckets else None
        if cost is not None and (size not in tried or cost < tried[size][0]):
            tried[size] = (cost, buckets)
    kept, last = [], None
    for size in range(1, most + 1):
        last = min(filter(None, [last, tried.get(size)]), default=None)
        kept.append(last and last[1])
    return kept
