"""For which sizes a graph is asked, and with which it is traced: ranges of the buckets, and sizes that all differ."""

import pytest
from exports import entry_of, model_of, shaped

from aotair.export.ranges import dynamic_dims, example_sizes

MODEL = model_of(lambda self, **inputs: inputs)


def of(buckets, *shapes, **parts):
    """An entry point with an input of each shape."""
    inputs = {f"x{number}": shaped(*shape, **parts) for number, shape in enumerate(shapes)}
    return entry_of(MODEL, inputs, buckets)


@pytest.mark.parametrize(
    ("buckets", "parts", "ranges"),
    [
        ({"n": [2, 4, 8]}, {}, {"n": (2, 8)}),
        ({"n": [8, 2]}, {}, {"n": (2, 8)}),
        ({"n": [4]}, {}, {}),  # one size and no padding
        ({"n": [4]}, {"pad": 0}, {"n": (2, 4)}),
        ({"n": [5]}, {"pad": "any"}, {"n": (2, 5)}),
        ({"n": [1]}, {"pad": 0}, {}),  # nothing is smaller
        ({"n": [2]}, {"pad": 0}, {"n": (1, 2)}),
        ({"n": [1, 4]}, {"pad": 0}, {"n": (1, 4)}),
    ],
)
def test_a_dimension_is_symbolic_where_calls_differ(buckets, parts, ranges):
    assert dynamic_dims(of(buckets, ["n", 3], **parts)) == ranges


def test_no_dimension_has_no_range():
    assert dynamic_dims(of({}, [2, 3])) == example_sizes(of({}, [2, 3])) == {}


def test_the_least_size_of_calls_is_the_least_of_the_range():
    model, inputs = MODEL, {"x": shaped("n", pad=0)}
    job = entry_of(model, inputs, {"n": [8]}, dimensions={"n": {"min": 6}})
    assert dynamic_dims(job) == {"n": (6, 8)}
    assert dynamic_dims(entry_of(model, inputs, {"n": [8]}, dimensions={"n": {"min": 8}})) == {}
    assert dynamic_dims(entry_of(model, inputs, {"n": [8]}, dimensions={"n": {"min": 2}})) == {"n": (4, 8)}


def test_buckets_that_are_listed_have_ranges_too():
    job = of([{"n": 2, "m": 8}, {"n": 4, "m": 8}, {"n": 4, "m": 16}], ["n", "m"])
    assert dynamic_dims(job) == {"n": (2, 4), "m": (8, 16)}


@pytest.mark.parametrize(
    ("buckets", "shapes", "sizes"),
    [
        ({"n": [2, 4]}, [["n", 3]], {"n": 4}),
        ({"n": [2, 4]}, [["n", 4]], {"n": 2}),  # 4 is a size of the model
        ({"n": [2, 4], "m": [2, 4]}, [["n", "m"]], {"n": 4, "m": 2}),
        ({"n": [2, 4], "m": [4, 5]}, [["n", "m"], [5, 2]], {"n": 4, "m": 5}),  # nothing else is left for m
        ({"n": [2, 9], "m": [2, 9], "k": [2, 9]}, [["n", "m", "k"]], {"n": 9, "m": 2, "k": 8}),  # between buckets
        ({"n": [1, 3]}, [["n"]], {"n": 3}),
        ({"n": [1, 2]}, [["n", 2]], {"n": 2}),  # 1 would pass for a dimension of one
        ({"n": [7], "m": [2, 7]}, [["n", "m"]], {"n": 7, "m": 2}),  # a fixed one is taken too
    ],
)
def test_each_dimension_is_traced_with_a_size_of_its_own_where_there_is_one(buckets, shapes, sizes):
    assert example_sizes(of(buckets, *shapes)) == sizes
