"""What can no set of so many buckets go below, along several dimensions? A Lagrangian relaxation, rounded soundly.

Each request r gets a price v. Whatever set of k corners serves all requests, it costs at least

    sum over r of v(r)  -  the k largest of  gain(b) = sum over r that b holds of max(0, v(r) - cost(r, b)),

for any prices: request r pays cost(r, b) >= v(r) - max(0, v(r) - cost(r, b)) in the corner b that serves it. An
optimal set can be taken from the corners that are the smallest to hold some requests, so that these are enough. The
prices are searched in floating point; the bound is computed in whole numbers. Where there are too many requests and
corners, both are rounded down to a coarser grid, which can only make a set cheaper.
"""

from dataclasses import dataclass

import numpy as np

from .corners import corners, lines
from .points import Points, volume

_CORNERS = 3_500
_PAIRS = 800_000  # requests and corners that hold them at less than the highest price
_RAW = 10_000_000  # pairs that are looked at to find these
_PATIENCE = 12  # steps without a better bound before they become shorter


@dataclass(frozen=True)
class Relaxed:
    """Requests and corners on one grid, rounded down; `cell` says where each request of the trace went.

    `floors` is what the requests of a cell cost without padding; `exact` whether nothing was rounded.
    """

    cells: Points
    cell: np.ndarray
    floors: np.ndarray
    grid: np.ndarray
    volumes: np.ndarray
    exact: bool


@dataclass(frozen=True)
class Dual:
    """A bound for sets of `count` corners, by prices; `gains` are those of the corners.

    `value` is the sum above, `bound` no less than what the requests cost without padding.
    """

    count: int
    value: int
    bound: int
    prices: np.ndarray
    gains: np.ndarray


@dataclass(frozen=True)
class _Pairs:
    """Requests and the corners that hold them for less than `caps`, the highest price of each request."""

    request: np.ndarray
    corner: np.ndarray
    cost: np.ndarray
    caps: np.ndarray


def relax(points: Points, ceiling: int | None) -> Relaxed:
    """The requests on the finest grid with few enough corners; those sorted by their elements."""
    distinct = [np.unique(column) for column in points.sizes.T]
    limits = [len(one) for one in distinct]
    while np.prod(limits, dtype=np.float64) > _CORNERS:
        largest = limits.index(max(limits))
        limits[largest] = limits[largest] * 9 // 10
    low = []
    for axis, (values, limit) in enumerate(zip(distinct, limits)):
        tops = values if limit == len(values) else lines(points, axis, limit)[-1]
        low.append(values[np.concatenate([[0], np.searchsorted(values, tops[:-1]) + 1])])
    down = [one[np.searchsorted(one, column, side="right") - 1] for one, column in zip(low, points.sizes.T)]
    sizes, cell = np.unique(np.stack(down, axis=1), axis=0, return_inverse=True)
    cell = cell.ravel()
    weights, floors = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    np.add.at(weights, cell, points.weights)
    np.add.at(floors, cell, points.weights * volume(points.sizes))
    grid = corners(sizes, low, ceiling)
    grid = grid[np.argsort(volume(grid), kind="stable")]
    exact = all(limit >= len(one) for limit, one in zip(limits, distinct))
    return Relaxed(Points(sizes, weights), cell, floors, grid, volume(grid), exact)


def dual(relaxed: Relaxed, served: np.ndarray, count: int, cost: int, work: int) -> Dual:
    """A bound for `count` corners. `served` is what each cell costs in a known set, which costs `cost` in all.

    Steps along subgradients, scaled by what the requests cost, until `work` (pairs looked at) is done.
    """
    pairs = _pairs(relaxed, served)
    prices = np.minimum(served, pairs.caps).astype(float)
    best, kept = -np.inf, prices
    step, still, scale = 1.0, 0, np.maximum(1.0, served.astype(float))
    direction = np.zeros(len(prices))
    for _ in range(max(20, work // max(1, len(pairs.cost)))):
        gain = np.maximum(prices[pairs.request] - pairs.cost, 0)
        gains = np.bincount(pairs.corner, gain, len(relaxed.volumes))
        top = _top(gains, count)
        value = prices.sum() - gains[top].sum()
        still += 1
        if value > best:
            improved = value > best + 1e-4 * (cost - best)
            best, kept, still = value, prices, 0 if improved else still
        if still >= _PATIENCE:
            step, still, prices, direction = step / 2, 0, kept, direction * 0
            continue
        used = np.zeros(len(relaxed.volumes))
        used[top] = 1
        slope = 1 - np.bincount(pairs.request, used[pairs.corner] * (gain > 0), len(prices))
        direction = slope + 0.5 * direction
        length = float((slope * slope * scale).sum())
        if length == 0 or cost - value < 1 or step < 1e-3:
            break
        prices = np.clip(prices + step * (cost - value) / length * scale * direction, 0, pairs.caps)
    return _rounded(relaxed, pairs, kept, count)


def bounds(relaxed: Relaxed, found: Dual, most: int) -> list[int]:
    """What the prices of one bound say about 1, 2, … `most` corners."""
    ordered = np.sort(found.gains)[::-1][:most]
    sums = np.cumsum(np.concatenate([ordered, np.zeros(most - len(ordered), np.int64)]))
    return [max(int(relaxed.floors.sum()), int(found.prices.sum()) - int(one)) for one in sums]


def _rounded(relaxed: Relaxed, pairs: _Pairs, prices: np.ndarray, count: int) -> Dual:
    whole = np.minimum(np.rint(prices).astype(np.int64), pairs.caps)
    gains = np.zeros(len(relaxed.volumes), np.int64)
    np.add.at(gains, pairs.corner, np.maximum(whole[pairs.request] - pairs.cost, 0))
    value = int(whole.sum()) - int(gains[_top(gains, count)].sum())
    return Dual(count, value, max(value, int(relaxed.floors.sum())), whole, gains)


def _top(gains: np.ndarray, count: int) -> np.ndarray:
    return np.arange(len(gains)) if count >= len(gains) else np.argpartition(gains, -count)[-count:]


def _pairs(relaxed: Relaxed, served: np.ndarray) -> _Pairs:
    """The pairs below the highest prices, which are as far above `served` as their number allows."""
    weights = relaxed.cells.weights
    starts = np.searchsorted(relaxed.volumes, volume(relaxed.cells.sizes))
    for part in (200, 100, 50, 25, 12, 6, 3, 1):
        caps = served + np.maximum(served // 100 * part, 1)
        ends = np.searchsorted(relaxed.volumes, -(-caps // weights))
        if int(np.maximum(ends - starts, 0).sum()) > _RAW:
            continue
        request, corner = _held(relaxed, starts, ends)
        if len(request) <= _PAIRS:
            break
    else:
        caps, request, corner = relaxed.floors, np.zeros(0, np.int64), np.zeros(0, np.int64)
    cost = np.maximum(weights[request] * relaxed.volumes[corner], relaxed.floors[request])
    below = cost < caps[request]
    return _Pairs(request[below], corner[below], cost[below], caps)


def _held(relaxed: Relaxed, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    requests, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for request, (size, start, end) in enumerate(zip(relaxed.cells.sizes, starts, ends)):
        held = np.flatnonzero((relaxed.grid[start:end] >= size).all(axis=1)) + start
        requests.append(np.full(len(held), request))
        found.append(held)
    return np.concatenate(requests), np.concatenate(found)
