"""Which buckets serve a trace with the least padding? Grouped by what cannot be padded, the limit shared out."""

from collections.abc import Sequence

import numpy as np

from aotair_runtime.errors import AotairError

from ..errors import InternalError
from . import bound, chain, corners, exact
from .points import Bucket, Buckets, Pick, Points, cost_of, serve, volume
from .trace import Trace

_LARGEST = 1 << 60  # elements that can be counted
_NEVER = 1 << 61
_PRICES = 240_000_000  # pairs looked at for the bounds: half for the largest number of buckets
_IMPROVED = 60_000_000  # requests looked at while sets of the bounds' corners are improved
_SETTLED = 20.0  # CP-SAT's deterministic seconds: half for the largest number of buckets


def best_buckets(trace: Trace, paddable: Sequence[bool], most: int, ceiling: int | None = None) -> list[Pick | None]:
    """A set for 1, 2, … `most` buckets, up to the first without padding; None where so few cannot serve all requests.

    No bucket has more than `ceiling` elements. Raises AotairError where `most` buckets cannot serve all.
    """
    groups = _groups(trace, paddable)
    _check(groups, trace, paddable, most, ceiling)
    shares = [_group(points, most - len(groups) + 1, ceiling, len(groups)) for points in groups]
    for points, share in zip(groups, shares):
        if share[-1] is None:
            raise AotairError(
                f"no {len(share)} buckets of at most {ceiling:,} elements were found that serve every request",
                got=f"{len(points.weights)} shapes, the largest {int(volume(points.sizes).max()):,} elements",
                fix="allow more buckets or more memory",
            )
    return _without_repeats(_shared(shares, most), sum(points.elements for points in groups))


def _groups(trace: Trace, paddable: Sequence[bool]) -> list[Points]:
    """The requests that a bucket can serve together: those with the same sizes where nothing can be padded."""
    found: dict[Bucket, list[int]] = {}
    for number, sizes in enumerate(trace.sizes):
        key = tuple(size for size, may in zip(sizes, paddable) if not may)
        found.setdefault(key, []).append(number)
    elements = sum(
        np.prod([int(max(column)) for column in zip(*(trace.sizes[n] for n in part))], dtype=object)
        * sum(trace.counts[n] for n in part)
        for part in found.values()
    )
    if elements >= _LARGEST:
        raise AotairError(
            "the trace is too large to be counted",
            expected=f"fewer than {_LARGEST:,} elements in all",
            got=f"{elements:,} with every size at its largest",
            fix="divide the counts",
        )
    rows, counts = np.array(trace.sizes, np.int64), np.array(trace.counts, np.int64)
    return [Points(rows[part], counts[part]) for _, part in sorted(found.items())]


def _check(groups: list[Points], trace: Trace, paddable: Sequence[bool], most: int, ceiling: int | None) -> None:
    if most < len(groups):
        fixed = ", ".join(dim for dim, may in zip(trace.dims, paddable) if not may)
        raise AotairError(
            f"{most} buckets cannot serve every request: {fixed} cannot be padded",
            expected=f"at least {len(groups)}, one for each of their observed values",
            got=str(most),
            fix=f"allow {len(groups)} buckets, or say in the recipe how the inputs that have {fixed} are padded",
        )
    largest = max(int(volume(points.sizes).max()) for points in groups)
    if ceiling is not None and largest > ceiling:
        raise AotairError(
            "the memory is too small for the largest request",
            expected=f"at most {ceiling:,} elements in a bucket",
            got=f"{largest:,} elements",
            fix="allow more memory, or refuse such requests before they are sent",
        )


def _group(points: Points, most: int, ceiling: int | None, parts: int) -> list[Pick | None]:
    """The sets of one group, one for each number of buckets; the work is shared by `parts` groups."""
    if chain.is_chain(points):
        return list(chain.pick(points, most))
    most = min(most, len(points.weights))
    found = corners.sets(points, most, ceiling)
    relaxed = bound.relax(points, ceiling)
    bounds = [points.elements] * most
    for count in range(most, 0, -1):
        known = found[count - 1]
        if known is None or cost_of(points, known) == bounds[count - 1]:
            continue
        share = (2 if count == most else 2 * max(1, most - 1)) * parts
        found[count - 1], new = _bounded(points, relaxed, known, count, ceiling, share)
        bounds[:count] = [max(pair) for pair in zip(bounds, new)]
    return _picks(points, found, bounds)


def _bounded(
    points: Points, relaxed: bound.Relaxed, known: Buckets, count: int, ceiling: int | None, share: int
) -> tuple[Buckets, list[int]]:
    """A set as good as `known` or better, and what its bound says about each number of buckets up to `count`."""
    _, unit = serve(points, known)
    served = np.zeros(len(relaxed.floors), np.int64)
    np.add.at(served, relaxed.cell, unit * points.weights)
    cost = int((unit * points.weights).sum())
    dual = bound.dual(relaxed, served, count, cost, _PRICES // share)
    kept = [tuple(map(int, relaxed.grid[i])) for i in np.argsort(-dual.gains, kind="stable")[:count] if dual.gains[i]]
    top = tuple(map(int, points.sizes.max(axis=0)))
    starts: list[Buckets] = [known, tuple(kept), (*kept[: count - 1], top)]
    if ceiling is not None:
        starts = [one for one in starts if all(volume(np.array(b, np.int64)) <= ceiling for b in one)]
    found = corners.best(points, starts, _IMPROVED // share, ceiling)
    assert found is not None, "the known set is one of the starts"
    least = bound.bounds(relaxed, dual, count)
    cost = cost_of(points, found)
    if least[-1] < cost:
        least[-1], better = exact.settle_exactly(relaxed, dual, cost, _SETTLED / share)
        found = better or found
    if least[-1] > cost_of(points, found):
        raise InternalError(f"a bound of {least[-1]} for {count} buckets that cost {cost_of(points, found)}")
    return found, least


def _picks(points: Points, found: list[Buckets | None], bounds: list[int]) -> list[Pick | None]:
    """The sets and their bounds: no more buckets cost more, no fewer can cost less."""
    for index in range(len(bounds) - 1, 0, -1):
        bounds[index - 1] = max(bounds[index - 1], bounds[index])
    picks: list[Pick | None] = []
    for known, least in zip(found, bounds):
        pick = None if known is None else Pick(known, cost_of(points, known), least)
        fewer = picks[-1] if picks else None
        if fewer is not None and (pick is None or pick.cost > fewer.cost):
            pick = Pick(fewer.buckets, fewer.cost, least)
        picks.append(pick)
    return picks


def _shared(shares: list[list[Pick | None]], most: int) -> list[Pick | None]:
    """The best shares of 1, 2, … `most` buckets for the groups, and the bound over all shares."""
    costs, bounds = _curves(shares[0], most)
    taken = []
    for share in shares[1:]:
        own, least = _curves(share, most)
        costs, way = _combined(costs, own)
        bounds, _ = _combined(bounds, least)
        taken.append(way)
    picks: list[Pick | None] = []
    for count in range(1, most + 1):
        if costs[count] >= _NEVER:
            picks.append(None)
            continue
        buckets: list[Bucket] = []
        left = count
        for share, way in zip(shares[:0:-1], taken[::-1]):
            mine = int(way[left])
            buckets += _of(share, mine)
            left -= mine
        buckets += _of(shares[0], left)
        picks.append(Pick(tuple(sorted(buckets)), int(costs[count]), int(bounds[count])))
    return picks


def _of(share: list[Pick | None], count: int) -> Buckets:
    """A group's buckets where it has `count` of them."""
    pick = share[min(count, len(share)) - 1]
    assert pick is not None, "too few buckets cost too much to be taken"
    return pick.buckets


def _curves(share: list[Pick | None], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Costs and bounds by the number of buckets, from none to `most`."""
    picks = [share[min(count, len(share)) - 1] for count in range(1, most + 1)]
    known = next(pick for pick in picks if pick is not None)
    costs = [_NEVER, *(_NEVER if pick is None else pick.cost for pick in picks)]
    bounds = [_NEVER, *((known if pick is None else pick).bound for pick in picks)]
    return np.array(costs, np.int64), np.array(bounds, np.int64)


def _combined(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least sums of two curves, and how many buckets the second takes of each number."""
    sums, taken = [], []
    for count in range(len(first)):
        tried = np.minimum(first[: count + 1][::-1] + second[: count + 1], _NEVER)
        taken.append(int(tried.argmin()))
        sums.append(int(tried.min()))
    return np.array(sums, np.int64), np.array(taken, np.int64)


def _without_repeats(picks: list[Pick | None], floor: int) -> list[Pick | None]:
    end = next((number for number, pick in enumerate(picks) if pick is not None and pick.cost == floor), len(picks))
    return picks[: end + 1]
