"""Models that torch shares out (DTensor): their factory is given a mesh, and calls `parallelize_module`."""

import sys
from pathlib import Path

import pytest
import torch
from cases import SHARED_BY_TORCH, TORCH_SHARES, WORDS, recipe
from marks import long
from torch_shares import CachedByTorch, SharedByTorch, TwoSteps, shared_by_torch

import aotair
from aotair.errors import ModelError, ProofError, UnsupportedError
from aotair.prove.prove import all_on_host
from aotair_runtime.artifact.open import open_artifact, read_program
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.format.schema import Cut, Shard

ROWS = {"x": {"shape": ["n", 16], "dtype": "float32"}}


def shared(factory: str, inputs: dict, buckets: dict | None = None, mesh: dict | None = None, **kwargs: object) -> dict:
    return recipe(factory, inputs, buckets, mesh=mesh or {"tp": 2}, parallel="model", kwargs=kwargs, file=TORCH_SHARES)


def answers(path: Path, entry: str, inputs: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Those of every rank, called together in this process."""
    with all_on_host(open_artifact(path), Allowed()) as ranks:
        return ranks.entry_points[entry].flat(inputs)


@pytest.mark.parametrize("sequence", [long(False), True])
def test_parallelize_module(tmp_path: Path, sequence: bool):
    hook = sys.excepthook
    wished = SHARED_BY_TORCH["model"] | {"kwargs": {"sequence": sequence}}
    path = aotair.build(SHARED_BY_TORCH | {"model": wished}, tmp_path / "a.aotair")
    program = read_program(path)
    shards = {constant.name: constant.shard for constant in program.constants}
    assert shards["query.weight"] == Shard(0, 0, 2) and shards["out.weight"] == Shard(0, 1, 2)
    assert shards["embed.weight"] == Shard(0, 0, 2) and shards["norm.weight"] is None
    weights = {constant.name for constant in program.constants if constant.kind == "weight"}
    assert weights | {"out.bias", "down.bias"} == set(SharedByTorch().state_dict()), "what a checkpoint has"
    numbers = {name: shard for name, shard in shards.items() if "number_of_rank" in name}
    assert numbers and set(numbers.values()) == {Shard(0, 0, 2)}, "the first row of its table, say"
    names = {op.name.partition(".")[0].rstrip("_") for op in program.ops}
    assert "aten::scaled_dot_product_attention" in names or "air::attention" in names
    wanted = {"air::all_gather", "air::reduce_scatter"} if sequence else {"air::all_reduce", "air::all_gather"}
    assert {name for name in names if name.startswith("air::") and name != "air::attention"} >= wanted
    torch.manual_seed(0)
    model, ids = SharedByTorch(), torch.randint(48, (2, 5))
    torch.testing.assert_close(answers(path, "forward", [ids])[0], model(ids), atol=1e-4, rtol=1e-4)
    assert not torch.distributed.is_initialized() and sys.excepthook is hook


@pytest.mark.long
def test_four_ranks_beside_one(tmp_path: Path):
    wished = shared("shared_by_torch", WORDS, {"batch": [2], "seq": [4]}) | {"mesh": [{}, {"tp": 4}]}
    path = aotair.build(wished, tmp_path / "a.aotair")
    torch.manual_seed(0)
    model, ids = shared_by_torch(), torch.randint(48, (2, 4))
    with aotair.load(path, mesh={}) as alone:
        torch.testing.assert_close(alone(ids), model(ids), atol=1e-4, rtol=1e-4)


def test_a_weight_cut_along_both_axes(tmp_path: Path):
    path = aotair.build(shared("cut_twice", ROWS, {"n": [2, 4]}, {"a": 2, "b": 2}), tmp_path / "a.aotair")
    shards = {constant.name: constant.shard for constant in read_program(path).constants}
    assert shards["up.weight"] == Shard(0, 0, 2, again=Cut(1, 0, 2))
    torch.manual_seed(0)
    model, x = TwoSteps(), torch.randn(4, 16)
    torch.testing.assert_close(answers(path, "forward", [x])[0], model(x), atol=1e-5, rtol=1e-5)


def test_an_empty_cache_is_cut_as_its_shape_says(tmp_path: Path):
    inputs = {
        "x": {"shape": [2, 1, 16], "dtype": "float32"},
        "position": {"shape": [1], "dtype": "int64", "range": [0, 16]},
    }
    path = aotair.build(shared("cached_by_torch", inputs), tmp_path / "a.aotair")
    program = read_program(path)
    shards = {item.name: program.constants[item.constant].shard for item in program.state}
    assert shards == dict.fromkeys(("keys", "values"), Shard(0, 1, 2))
    torch.manual_seed(0)
    model = CachedByTorch()
    with all_on_host(open_artifact(path), Allowed()) as ranks:
        for place in range(3):
            x, position = torch.randn(2, 1, 16), torch.tensor([place])
            got = ranks.entry_points["forward"].flat([x, position])[0]
            torch.testing.assert_close(got, model(x, position), atol=1e-5, rtol=1e-5)


def test_entry_points_and_arguments_by_keyword(tmp_path: Path):
    weight = {"weight": {"shape": ["n", 1], "dtype": "float32"}}
    wished = shared("two_steps", ROWS, {"n": [2]})
    entries = {
        "forward": {"inputs": wished.pop("inputs"), "buckets": wished.pop("buckets")},
        "score": {"method": "score", "inputs": ROWS | weight, "buckets": {"n": [3, 4]}},
    }
    path = aotair.build(wished | {"entry_points": entries}, tmp_path / "a.aotair")
    torch.manual_seed(0)
    model, x, w = TwoSteps(), torch.randn(4, 16), torch.rand(4, 1)
    got = answers(path, "score", [x, w])[0]
    torch.testing.assert_close(got, model.score(x, weight=w)["score"], atol=1e-5, rtol=1e-5)


def test_inputs_that_torch_prepares(tmp_path: Path):
    path = aotair.build(shared("two_steps", ROWS, {"n": [2, 4]}, does="prepares"), tmp_path / "a.aotair")
    torch.manual_seed(0)
    model, x = TwoSteps(), torch.randn(4, 16)
    torch.testing.assert_close(answers(path, "forward", [x])[0], model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.long
def test_the_sequence_is_cut_where_it_has_one_size(tmp_path: Path):
    wished = SHARED_BY_TORCH | {"buckets": {"batch": [2], "seq": [8]}}
    path = aotair.build(wished | {"model": wished["model"] | {"kwargs": {"sequence": True}}}, tmp_path / "a.aotair")
    torch.manual_seed(0)
    model, ids = SharedByTorch(), torch.randint(48, (1, 5))
    torch.testing.assert_close(answers(path, "forward", [ids])[0], model(ids), atol=1e-4, rtol=1e-4)


def test_tied_weights_are_one(tmp_path: Path):
    path = aotair.build(shared("tied_by_torch", WORDS, {"batch": [2], "seq": [3]}), tmp_path / "a.aotair")
    (weight,) = [constant for constant in read_program(path).constants if constant.kind == "weight"]
    assert weight.names == (("embed.weight", "head.weight"),) and weight.shard == Shard(0, 0, 2)


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"does": "nothing"}, ModelError, "nothing of the model is shared out"),
        ({"does": "ends"}, ModelError, "the model of a rank fails: SystemExit: 3"),
        ({"does": "dies"}, ModelError, "the process that made the model of a rank has ended"),
        ({"does": "gathers"}, ModelError, "wrapped by fully_shard"),
        ({"does": "more"}, UnsupportedError, "ranks' programs differ in their numbers of operations"),
        ({"does": "its number"}, ProofError, "answer differently|not the original model's"),
        ({"inner": 33}, ModelError, r"up.weight \[33, 16\] cannot be cut evenly along tp"),
    ],
)
def test_what_is_refused(tmp_path: Path, kwargs: dict, error: type, text: str):
    with pytest.raises(error, match=text):
        aotair.build(shared("two_steps", ROWS, {"n": [2]}, **kwargs), tmp_path / "a.aotair")
    assert not list(tmp_path.iterdir())
