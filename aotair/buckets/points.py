"""What do requests cost, and which bucket serves each? Requests and buckets as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Bucket = tuple[int, ...]
Buckets = tuple[Bucket, ...]


@dataclass(frozen=True)
class Points:
    """Distinct requests: sizes of shape (requests, dimensions), and how often each came."""

    sizes: np.ndarray
    weights: np.ndarray

    @property
    def elements(self) -> int:
        """What all requests come to without any padding."""
        return int((volume(self.sizes) * self.weights).sum())


@dataclass(frozen=True)
class Pick:
    """Buckets that serve every request, the elements run in them, and a number that no set of so many can go below."""

    buckets: Buckets
    cost: int
    bound: int


def volume(sizes: np.ndarray) -> np.ndarray:
    """The elements of each row."""
    elements: np.ndarray = sizes.prod(axis=-1, dtype=np.int64)
    return elements


def serve(points: Points, buckets: Sequence[Bucket]) -> tuple[np.ndarray, np.ndarray]:
    """For each request the number of the bucket that the runtime takes (-1: none), and that bucket's elements.

    It takes the fewest elements, and of equals the first in the order of the recipe, which is sorted.
    """
    number = np.full(len(points.weights), -1)
    cost = np.zeros(len(points.weights), np.int64)
    volumes = [int(volume(np.array(bucket, np.int64))) for bucket in buckets]
    for index in sorted(range(len(buckets)), key=lambda i: (volumes[i], buckets[i])):
        taken = (number < 0) & (points.sizes <= np.array(buckets[index])).all(axis=1)
        number[taken], cost[taken] = index, volumes[index]
    return number, cost


def total(points: Points, buckets: Sequence[Bucket]) -> int | None:
    """The elements run in `buckets`, or None where a request finds none."""
    number, cost = serve(points, buckets)
    return None if (number < 0).any() else int((cost * points.weights).sum())


def cost_of(points: Points, buckets: Sequence[Bucket]) -> int:
    """The elements run in `buckets`, which are known to serve every request."""
    found = total(points, buckets)
    assert found is not None
    return found


def shrunk(points: Points, buckets: Sequence[Bucket]) -> Buckets:
    """The same buckets, each no larger than what it serves; those that serve nothing left out."""
    known = tuple(sorted(set(buckets)))
    while True:
        number, _ = serve(points, known)
        used = [points.sizes[number == index] for index in range(len(known))]
        smaller = tuple(sorted({tuple(map(int, part.max(axis=0))) for part in used if len(part)}))
        if smaller == known:
            return known
        known = smaller
