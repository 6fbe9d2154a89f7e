"""The best buckets where requests are ordered by size, as along one dimension: exact, by dynamic programming."""

import numpy as np

from .points import Pick, Points, volume


def is_chain(points: Points) -> bool:
    """Whether of any two requests one holds the other. Requests in lexicographic order."""
    return bool((points.sizes[1:] >= points.sizes[:-1]).all())


def pick(points: Points, most: int) -> list[Pick]:
    """The best sets of 1, 2, … `most` buckets, up to the first without padding."""
    values = volume(points.sizes)
    return [_picked(points, ends, cost) for ends, cost in splits(values, points.weights, most)]


def splits(values: np.ndarray, weights: np.ndarray, most: int) -> list[tuple[list[int], int]]:
    """For 1, 2, … `most` runs of increasing `values`: the last index of each run, and what they cost at the least,
    where each value costs as much as the last of its run.

    The cost has Monge's property, so that the best start of the last run never moves back as its end moves on; each
    layer halves the ends and searches only between the starts of the neighbours: n log n.
    """
    before = np.concatenate([[0], np.cumsum(weights)])
    floor = int((values * weights).sum())
    costs = np.concatenate([[0], values * before[1:]])
    starts = [np.zeros(len(values) + 1, np.int64)]
    found = [([len(values) - 1], int(costs[-1]))]
    while len(found) < min(most, len(values)) and found[-1][1] > floor:
        costs, start = _layer(values, before, costs)
        starts.append(start)
        found.append((_ends(starts), int(costs[-1])))
    return found


def _layer(values: np.ndarray, before: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The costs of the first j values with one run more, and where the last run starts."""
    count = len(values)
    new, start = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    step = 1 << (count.bit_length() - 1)
    while step:
        ends = np.arange(step, count + 1, 2 * step)
        after = np.minimum(ends + step, count + 1)
        low = start[ends - step]
        high = np.where(after <= count, np.minimum(start[np.minimum(after, count)], ends - 1), ends - 1)
        new[ends], start[ends] = _least(values, before, costs, ends, low, high)
        step //= 2
    return new, start


def _least(
    values: np.ndarray, before: np.ndarray, costs: np.ndarray, ends: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each end the least cost over the starts from `low` to `high`, and the first start that has it."""
    lengths = high - low + 1
    offsets = np.cumsum(lengths) - lengths
    owner = np.repeat(np.arange(len(ends)), lengths)
    begins = np.arange(int(lengths.sum())) - offsets[owner] + low[owner]
    last = ends[owner]
    tried = costs[begins] + values[last - 1] * (before[last] - before[begins])
    least = np.minimum.reduceat(tried, offsets)
    hits = np.flatnonzero(tried == least[owner])
    first = hits[np.searchsorted(owner[hits], np.arange(len(ends)))]
    return least, begins[first]


def _ends(starts: list[np.ndarray]) -> list[int]:
    ends, end = [], len(starts[0]) - 1
    for start in reversed(starts):
        if end == 0:
            break
        ends.append(end - 1)
        end = int(start[end])
    return ends[::-1]


def _picked(points: Points, ends: list[int], cost: int) -> Pick:
    return Pick(tuple(tuple(map(int, points.sizes[end])) for end in ends), cost, cost)
