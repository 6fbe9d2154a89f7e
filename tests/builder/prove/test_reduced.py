"""With calls of which sizes a bucket's padding is tried."""

from aotair.prove.reduced import reduced_sizes
from aotair_runtime.format.schema import Bucket, Dim, EntryPoint


def entry(*sizes: tuple[int, ...], dims: tuple[Dim, ...]) -> EntryPoint:
    buckets = tuple(Bucket(one, (), (), (), (), 0, 0, None) for one in sizes)
    return EntryPoint("forward", dims, (), (), ("tuple",), buckets, ())


N, M = Dim("n", True), Dim("m", True)


def test_where_together_is_another_buckets_each_dimension_is_padded_alone():
    """Two buckets, of which no call that is smaller along both takes the larger one."""
    found = entry((2, 3), (4, 3), dims=(N, M))
    assert reduced_sizes(found, 0, False) == ([(1, 3), (2, 1)], [(1, 1), (1, 2)])
    assert reduced_sizes(found, 1, False) == ([(3, 3), (4, 1)], [(3, 1), (3, 2)])


def test_where_other_ranks_may_have_more_a_bucket_serves_calls_of_every_size():
    found = entry((2, 3), (4, 3), dims=(N, M))
    assert reduced_sizes(found, 1, True) == ([(3, 3), (4, 1), (1, 3)], [(1, 1), (3, 1), (3, 2)])


def test_where_every_size_has_its_bucket_nothing_is_padded_but_for_other_ranks():
    found = entry((1,), (2,), dims=(N,))
    assert [reduced_sizes(found, number, False) for number in (0, 1)] == [([], [])] * 2
    assert reduced_sizes(found, 1, True) == ([(1,)], [(1,)]) and reduced_sizes(found, 0, True) == ([], [])


def test_no_size_below_the_least_and_none_of_a_dimension_that_is_not_padded():
    found = entry((4, 3), (8, 3), dims=(Dim("n", True, 4), Dim("m", False)))
    assert reduced_sizes(found, 1, False) == ([(5, 3)], [(5, 3), (7, 3)])
    assert reduced_sizes(found, 1, True) == ([(5, 3), (4, 3)], [(4, 3), (5, 3), (7, 3)])
