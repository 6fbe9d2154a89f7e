"""Parts of tensors: cut and joined again, for any mesh."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aotair_runtime.format.mesh import (
    again,
    coordinates,
    joined,
    neighbours,
    part_number,
    part_of,
    partners,
    parts_of,
    ranks_of,
    whole_shape,
)
from aotair_runtime.format.schema import Axis, Constant, Shard

MESHES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(
    lambda sizes: tuple(Axis(f"axis{number}", size) for number, size in enumerate(sizes))
)


@given(MESHES)
def test_every_rank_has_a_place_of_its_own_and_each_axis_cuts_all_ranks_into_groups(mesh: tuple[Axis, ...]):
    places = [coordinates(mesh, rank) for rank in range(ranks_of(mesh))]
    assert len(set(places)) == len(places) and places == sorted(places)
    for number, axis in enumerate(mesh):
        groups = neighbours(mesh, number)
        assert sorted(rank for group in groups for rank in group) == list(range(ranks_of(mesh)))
        assert all([places[rank][number] for rank in group] == list(range(axis.size)) for group in groups)
        for rank in range(ranks_of(mesh)):
            assert partners(mesh, {number}, rank) == next(group for group in groups if rank in group)
    assert partners(mesh, range(len(mesh)), 0) == list(range(ranks_of(mesh))) and partners(mesh, (), 0) == [0]


@given(st.integers(0, 2), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_parts_joined_are_the_whole(dim: int, parts: int, blocks: int, size: int):
    shape = [2, 3, 2]
    shape[dim] = parts * blocks * size
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    shard = Shard(0, dim, parts, blocks)
    cut = [part_of(whole, shard, number) for number in range(parts)]
    assert all(part.is_contiguous() and part.shape[dim] == blocks * size for part in cut)
    assert torch.equal(joined(cut, shard), whole)


@given(st.integers(0, 2), st.integers(0, 2), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
def test_parts_that_are_cut_again_lie_one_after_the_other(outer: int, inner: int, first: int, then: int, blocks: int):
    shape = [2, 3, 2]
    shape[outer] *= first
    shape[inner] *= then * blocks
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    shard = again(Shard(0, outer, first), Shard(1, inner, then, blocks))
    assert parts_of(shard) == first * then
    cut = [part_of(whole, shard, number) for number in range(parts_of(shard))]
    for number, part in enumerate(cut):
        once = part_of(whole, Shard(0, outer, first), number // then)
        assert torch.equal(part, part_of(once, Shard(1, inner, then, blocks), number % then))
    assert torch.equal(joined(cut, shard), whole)
    assert whole_shape(Constant("x", "int64", tuple(cut[0].shape), "weight", (("x",),), shard)) == tuple(shape)
    mesh = (Axis("pp", first), Axis("tp", then))
    assert [part_number(shard, mesh, rank) for rank in range(ranks_of(mesh))] == list(range(first * then))


def test_blocks_are_cut_each():
    gate_and_up = torch.tensor([1, 2, 3, 4, 10, 20, 30, 40])
    assert part_of(gate_and_up, Shard(0, 0, 2, blocks=2), 1).tolist() == [3, 4, 30, 40]


@pytest.mark.parametrize(("ranks", "parts", "numbers"), [(4, 4, [0, 1, 2, 3]), (4, 2, [0, 0, 1, 1]), (4, 1, [0] * 4)])
def test_neighbours_take_the_same_part_where_there_are_fewer(ranks: int, parts: int, numbers: list[int]):
    mesh = (Axis("tp", ranks),)
    assert [part_number(Shard(0, 0, parts), mesh, rank) for rank in range(ranks)] == numbers


def test_a_part_of_the_first_dimension_is_no_copy():
    whole = torch.arange(8.0).view(4, 2)
    assert part_of(whole, Shard(0, 0, 2), 1).data_ptr() == whole[2:].data_ptr()
