"""Whatever several programs read of one weights file, each rank reads what its own program had; and equal tensors are
there once."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aotair.program import Built
from aotair.stored_once import StoredOnce, stored_once
from aotair_runtime.artifact.constants import constants_of
from aotair_runtime.format.mesh import joined, of_rank, part_of, parts_of, ranks_of
from aotair_runtime.format.schema import (
    Axis,
    Constant,
    Cut,
    Joined,
    Options,
    Program,
    Requirements,
    Shard,
    Tolerance,
)

TP2, TP4, PP2 = (Axis("tp", 2),), (Axis("tp", 4),), (Axis("pp", 2),)
Held = tuple[Constant, torch.Tensor]


def held(name: str, whole: torch.Tensor, shard: Shard | None = None, kind: str = "weight") -> Held:
    """A constant, of a whole tensor that ranks cut so."""
    shape = tuple((whole if shard is None else part_of(whole, shard, 0)).shape)
    dtype = str(whole.dtype).removeprefix("torch.")
    return Constant(name, dtype, shape, kind, ((name,),), shard), whole


def derived(name: str, parts: Sequence[torch.Tensor], axis: int = 0) -> Held:
    """What ranks have made, joined as a build joins it."""
    shard = Shard(axis, 0, len(parts))
    return held(name, joined(list(parts), shard), shard, "derived")


def built(mesh: tuple[Axis, ...], *items: Held, joins: tuple[Joined, ...] = ()) -> Built:
    program = Program(
        "x", Requirements("2.9", "2.13", "cpu"), Options(True, False), Tolerance(0.0, 0.0),
        tuple(constant for constant, _ in items), (), (), (), (), (), 0, 64, (), mesh=mesh, joined=joins,
    )  # fmt: skip
    return Built(program, {constant.name: whole for constant, whole in items}, {})


def checked(*programs: Built) -> StoredOnce:
    """Stored once, after each rank was seen to read what it has in its own program."""
    found = stored_once(programs)
    for old, new in zip(programs, found.programs, strict=True):
        for rank in range(ranks_of(old.program.mesh)):
            mine = constants_of(found.weights, new, "x", rank)
            for constant, got in zip(old.program.constants, mine, strict=True):
                want = of_rank(old.weights[constant.name], constant, old.program.mesh, rank)
                assert got.dtype == want.dtype and torch.equal(got, want), constant.name
        assert len({constant.name for constant in new.constants}) == len(new.constants)
    return found


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("dim", [0, 1])
def test_parts_of_a_computed_weight_lie_as_in_the_whole_that_one_rank_has(blocks: int, dim: int):
    """Queries, keys and values as one matrix, of which each rank has some of each; or columns."""
    whole = torch.randn(12, 12)
    shard = Shard(0, dim, 2, blocks)
    ranks = derived("w:cat", [part_of(whole, shard, number) for number in range(2)])
    found = checked(built((), held("w:cat", whole, kind="derived")), built(TP2, ranks))
    assert [*found.weights] == ["w:cat"] and found.programs[1].constants[0].shard == shard


def test_programs_of_ranks_alone_agree_on_the_whole():
    whole = torch.randn(8, 8)
    programs = [
        built(mesh, derived("w:mul", [part_of(whole, Shard(0, 1, mesh[0].size), n) for n in range(mesh[0].size)]))
        for mesh in (TP2, TP4)
    ]
    found = checked(*programs)
    assert len(found.weights) == 1 and torch.equal(found.weights["w:mul"], whole)


def test_parts_that_are_cut_again_lie_as_in_the_whole():
    whole, mesh = torch.randn(8, 8), (Axis("pp", 2), Axis("tp", 2))
    shard = Shard(0, 0, 2, again=Cut(1, 1, 2))
    parts = [part_of(whole, shard, number) for number in range(parts_of(shard))]
    wrong = Shard(0, 0, 2, again=Cut(1, 0, 2))
    ranks = held("w:mul", joined(parts, wrong), wrong, "derived")
    layers = [held(f"layers.{n}:mul", half, kind="derived") for n, half in enumerate(whole.chunk(2))]
    stages = (Joined("layers.0+1", ("layers.0", "layers.1")),)
    found = checked(built(mesh, ranks, joins=stages), built((), *layers))
    assert [*found.weights] == ["layers.0:mul", "layers.1:mul"]


def test_layers_of_stages_are_those_of_one_rank_whatever_comes_first():
    layers = [torch.randn(4, 3) for _ in range(4)]
    names = [f"layers.{number}" for number in range(4)]
    whole = [held(name, layer) for name, layer in zip(names, layers, strict=True)]
    staged = [held(f"layers.{a}+{b}", torch.cat([layers[a], layers[b]]), Shard(0, 0, 2)) for a, b in ((0, 2), (1, 3))]
    joins = tuple(Joined(f"layers.{a}+{b}", (names[a], names[b])) for a, b in ((0, 2), (1, 3)))
    for programs in (
        [built(PP2, *staged, joins=joins), built((), *whole)],
        [built((), *whole), built(PP2, *staged, joins=joins)],
        [built(PP2, *staged, joins=joins), built((Axis("tp", 2),), *whole)],
    ):
        assert sorted(checked(*programs).weights) == names
    alone = checked(built(PP2, *staged, joins=joins), built((Axis("pp", 2), Axis("dp", 1)), *staged, joins=joins))
    assert sorted(alone.weights) == names


def test_tensors_of_one_program_stay_apart_though_they_are_equal():
    """One of them may get other values later."""
    zeros = [held(name, torch.zeros(4)) for name in "ab"]
    found = checked(built((), *zeros), built(TP2, held("b", torch.zeros(4)), held("c", torch.zeros(4))))
    assert len(found.weights) == 2
    assert [constant.name for constant in found.programs[1].constants] == ["a", "b"]


def test_other_tensors_of_one_name_get_names_of_their_own():
    wholes = [torch.full((4,), float(number)) for number in range(3)]
    meshes = [(), TP2, TP4]
    found = checked(*(built(mesh, held("a", whole)) for mesh, whole in zip(meshes, wholes, strict=True)))
    assert [*found.weights] == ["a", "a#2", "a#3"]
    assert [program.constants[0].names for program in found.programs] == [(("a",),)] * 3


def test_the_list_says_what_the_file_holds():
    found = checked(built((), held("a", torch.zeros(2, 3, dtype=torch.bfloat16))), built(TP2, held("a", torch.ones(4))))
    (beside, other) = (program.beside for program in found.programs)
    assert beside.stored == other.stored and beside.meshes == ((), TP2) and (beside.number, other.number) == (0, 1)
    assert [(one.name, one.dtype, one.shape) for one in beside.stored] == [
        ("a", "bfloat16", (2, 3)), ("a#2", "float32", (4,)),
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ranks_read_what_they_had_of_random_wholes(data):
    """Of few different numbers, so that much is equal by chance."""
    programs = []
    for mesh in ((), TP2, TP4, PP2):
        items = []
        for name in "abcd":
            rows, columns = data.draw(st.sampled_from([(4, 4), (8, 4), (12, 12)]))
            seed, kind = data.draw(st.integers(0, 2)), data.draw(st.sampled_from(["weight", "derived", "fixed"]))
            whole = torch.randint(0, 2, (rows, columns), generator=torch.Generator().manual_seed(seed)).float()
            shard = data.draw(st.sampled_from([None, *(Shard(0, d, mesh[0].size) for d in (0, 1))] if mesh else [None]))
            items.append(held(name, whole, shard, kind))
        programs.append(built(mesh, *items))
    checked(*programs)
