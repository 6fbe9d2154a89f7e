"""Ranks that are called with inputs of their own: which sizes does the bucket have to hold that all of them take?"""

from collections.abc import Collection, Hashable, Sequence


def common_sizes(
    said: Sequence[Sequence[int]], replicas: Sequence[Hashable], dims: int, fixed: Collection[int]
) -> tuple[int, ...] | None:
    """The largest size along each of the `dims` dimensions. `said`: of each rank the number of the entry point that it
    was called at, or a negative number, and sizes; `replicas`: which ranks are called with the same inputs. None where
    ranks differ that may not: in what they were called at, within a replica, or along a dimension that is `fixed`."""
    if said[0][0] < 0 or any(one[0] != said[0][0] for one in said):
        return None
    by_replica: dict[Hashable, tuple[int, ...]] = {}
    for replica, one in zip(replicas, said, strict=True):
        sizes = tuple(one[1 : 1 + dims])
        if by_replica.setdefault(replica, sizes) != sizes:
            return None
    found = tuple(map(max, zip(*by_replica.values())))
    if any(sizes[dim] != found[dim] for sizes in by_replica.values() for dim in fixed):
        return None
    return found
