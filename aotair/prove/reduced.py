"""Of which sizes are the calls with which a bucket's padding is tried?"""

from aotair_runtime.call.buckets import choose
from aotair_runtime.errors import ShapeError
from aotair_runtime.format.schema import Bucket, EntryPoint

Sizes = tuple[int, ...]


def reduced_sizes(entry: EntryPoint, number: int, own_inputs: bool) -> tuple[list[Sizes], list[Sizes]]:
    """Sizes of calls that the bucket of that number serves with padding: the smallest along each dimension; and along
    all of them at once, the smallest, and one less than the bucket's. `own_inputs`: other ranks' inputs may be larger,
    so that calls which a smaller bucket would hold are served too."""
    bucket = entry.buckets[number]
    smallest = [_smallest(entry, bucket)] + ([_smallest(entry, bucket, alone=False)] if own_inputs else [])
    short = tuple(
        max(least, size - 1) if dim.paddable else size
        for dim, size, least in zip(entry.dims, bucket.sizes, smallest[0], strict=True)
    )
    along = [
        (*bucket.sizes[:axis], least[axis], *bucket.sizes[axis + 1 :])
        for least in smallest
        for axis, dim in enumerate(entry.dims)
        if dim.paddable
    ]

    def served(sizes: Sizes) -> bool:
        return sizes != bucket.sizes and _serves(entry, number, sizes, own_inputs)

    together = dict.fromkeys((*smallest[::-1], short))
    return list(filter(served, dict.fromkeys(along))), list(filter(served, together)) or list(filter(served, along))


def _smallest(entry: EntryPoint, bucket: Bucket, alone: bool = True) -> Sizes:
    """The smallest sizes that no smaller bucket holds; not `alone`: that a call may have at all."""
    found = list(bucket.sizes)
    for axis, dim in enumerate(entry.dims):
        below = [b.sizes[axis] for b in entry.buckets if alone and b.sizes[axis] < bucket.sizes[axis]]
        if dim.paddable:
            found[axis] = max(max(below, default=0) + 1, dim.least)
    return tuple(found)


def _serves(entry: EntryPoint, number: int, sizes: Sizes, own_inputs: bool) -> bool:
    try:
        return choose(entry, sizes) == number or own_inputs
    except ShapeError:
        return False
