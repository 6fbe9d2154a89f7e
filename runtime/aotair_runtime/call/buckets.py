"""Which bucket serves a call, and what a size expression comes to."""

from collections.abc import Sequence

from ..errors import ShapeError
from ..format.schema import EntryPoint
from ..format.sizes import describe, shape_text


def read_sizes(entry: EntryPoint, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The size of each dynamic dimension in a call whose inputs have `shapes`.

    Raises ShapeError where a rank or a fixed size is wrong, or two inputs disagree about a dimension.
    """
    sizes: dict[int, tuple[int, str]] = {}
    for spec, shape in zip(entry.inputs, shapes, strict=True):
        if len(shape) != len(spec.shape):
            raise _misfit(entry, spec.name, shape)
        for axis, (expr, size) in enumerate(zip(spec.shape, shape)):
            if isinstance(expr, int):
                if size != expr:
                    raise _misfit(entry, spec.name, shape)
                continue
            assert expr[0] == "dim"  # the rules of the format have it so
            index = expr[1]
            known, owner = sizes.setdefault(index, (size, spec.name))
            if known != size:
                raise ShapeError(
                    f"the inputs disagree about the dimension {entry.dims[index].name!r}",
                    where=entry.name,
                    got=f"{owner} has {known}, {spec.name} has {size} (axis {axis})",
                )
    return tuple(sizes[i][0] for i in range(len(entry.dims)))


def choose(entry: EntryPoint, sizes: tuple[int, ...]) -> int:
    """The number of the bucket with the fewest elements that holds `sizes`: at least as large along every paddable
    dimension, equal along the others. Raises ShapeError where there is none."""
    for dim, want in zip(entry.dims, sizes, strict=True):
        if want < dim.least:
            raise ShapeError(
                f"the model takes no {dim.name} below {dim.least}",
                where=entry.name,
                expected=f"{dim.name} of {dim.least} at least",
                got=describe(entry, sizes),
                fix="send a larger input: the model fails at smaller ones, or its recipe says so",
            )
    best = None
    for number, bucket in enumerate(entry.buckets):
        if all(
            have >= want if dim.paddable else have == want
            for dim, have, want in zip(entry.dims, bucket.sizes, sizes, strict=True)
        ):
            cost = _product(bucket.sizes)
            if best is None or cost < best[0]:
                best = (cost, number)
    if best is None:
        raise _no_bucket(entry, sizes)
    return best[1]


def _no_bucket(entry: EntryPoint, sizes: tuple[int, ...]) -> ShapeError:
    larger = any(all(have >= want for have, want in zip(bucket.sizes, sizes)) for bucket in entry.buckets)
    exact = ", ".join(
        dim.name
        for axis, (dim, want) in enumerate(zip(entry.dims, sizes))
        if not dim.paddable and all(bucket.sizes[axis] != want for bucket in entry.buckets)
    )
    fix = "add a bucket to the recipe and build again, or send a smaller input"
    if larger and exact:
        fix = f"nothing is padded along {exact}: give each input that has it a pad: in the recipe, or add a bucket"
    return ShapeError(
        "no bucket holds " + describe(entry, sizes),
        where=entry.name,
        fix=fix,
        expected="one of the buckets " + "; ".join(describe(entry, b.sizes) for b in entry.buckets),
    )


def _product(sizes: Sequence[int]) -> int:
    value = 1
    for size in sizes:
        value *= size
    return value


def _misfit(entry: EntryPoint, name: str, shape: Sequence[int]) -> ShapeError:
    spec = next(spec for spec in entry.inputs if spec.name == name)
    return ShapeError(
        f"the input {name!r} does not fit",
        where=entry.name,
        expected=f"shape {shape_text(entry, spec.shape)}, with the buckets "
        + "; ".join(describe(entry, bucket.sizes) for bucket in entry.buckets),
        got=f"shape {list(shape)}",
    )
