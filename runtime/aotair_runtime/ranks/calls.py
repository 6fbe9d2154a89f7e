"""Each rank says what it is called with: which sizes does the bucket of all have to hold, or how do they differ?"""

from collections.abc import Collection, Hashable, Sequence

from ..errors import RankError
from ..format.schema import Dim

REFUSED = -1  # what a rank says instead of the number of an entry point, where it makes no call
MOST_SHOWN = 8


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


def called_differently(
    said: Sequence[Sequence[int]], ranks: Sequence[int], dims: Sequence[Sequence[Dim]], own_inputs: str
) -> RankError:
    """The error of calls that are not alike. `said`: of each of the `ranks`, as above; `dims`: those of each entry
    point; `own_inputs`: the axes along which ranks have inputs of their own, as text, or nothing."""
    expected = "the same entry point with inputs of the same sizes on every rank"
    fix = "call every rank with the same inputs; Model.driver() on rank 0 and Model.follow() on the others sends them"
    if own_inputs:
        padded = ", ".join(dict.fromkeys(dim.name for each in dims for dim in each if dim.paddable)) or "none"
        expected = f"the same entry point on every rank; other sizes along {own_inputs} alone, of dimensions with pad: "
        expected += padded
        fix = "call every rank at the same time; one that has nothing to do makes the call with any legal inputs"
    texts = [f"rank {rank}: {_asked(one, dims)}" for rank, one in zip(ranks, said, strict=True)]
    return RankError(
        "the ranks were called differently, and none of them has run",
        expected=expected,
        got="; ".join(texts[:MOST_SHOWN]) + ("; …" if len(texts) > MOST_SHOWN else ""),
        fix=fix,
    )


def _asked(said: Sequence[int], dims: Sequence[Sequence[Dim]]) -> str:
    """What a rank was called with, or did."""
    if said[0] < 0:
        return "refused its inputs" if said[0] == REFUSED else "something else"
    return f"entry point {said[0]}, sizes {list(said[1 : 1 + len(dims[said[0]])])}"
