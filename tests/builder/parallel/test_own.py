"""Models that share themselves out: their factory is given a mesh, and they call functional collectives of torch."""

from pathlib import Path

import pytest
import torch
from cases import SHARES_ITSELF
from models import KnowsItsPlace, SharesItself, SumsWhatHasGaps

import aotair
from aotair.errors import ModelError, ProofError, RecipeError
from aotair.prove.prove import all_on_host
from aotair_runtime.artifact.open import open_artifact, read_program
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.format.schema import Shard


def test_its_parts_are_found_in_the_whole_and_its_collectives_are_instructions(tmp_path: Path):
    path = aotair.build(SHARES_ITSELF, tmp_path / "a.aotair")
    program = read_program(path)
    shards = {constant.name: constant.shard for constant in program.constants}
    assert shards["up"] == Shard(0, 0, 2) and shards["down"] == Shard(0, 1, 2) and shards["norm"] is None
    assert shards["both"] == Shard(0, 0, 2, blocks=2)
    names = {op.name.partition(".")[0] for op in program.ops if op.name.startswith("air::")}
    assert {name.rstrip("_") for name in names} == {"air::all_reduce", "air::all_gather", "air::reduce_scatter"}
    torch.manual_seed(0)
    model, x = SharesItself(), torch.randn(6, 16)
    with all_on_host(open_artifact(path), Allowed()) as ranks:
        torch.testing.assert_close(ranks.entry_points["forward"].flat([x])[0], model(x), atol=1e-4, rtol=1e-5)
    assert not torch.distributed.is_initialized()


def test_tables_are_not_made_of_what_ranks_have_of_their_own(tmp_path: Path):
    recipe = SHARES_ITSELF | {"name": "knows", "model": {"factory": "models:KnowsItsPlace"}}
    path = aotair.build(recipe, tmp_path / "a.aotair")
    assert {item.name for item in read_program(path).constants} == {"scale", "place"}
    torch.manual_seed(0)
    model, x = KnowsItsPlace(), torch.randn(6, 16)
    with all_on_host(open_artifact(path), Allowed()) as ranks:
        torch.testing.assert_close(ranks.entry_points["forward"].flat([x])[0], model(x), atol=1e-4, rtol=1e-5)


def test_collectives_take_what_has_gaps(tmp_path: Path):
    recipe = SHARES_ITSELF | {"name": "gaps", "model": {"factory": "models:SumsWhatHasGaps"}}
    path = aotair.build(recipe, tmp_path / "a.aotair")
    torch.manual_seed(0)
    model, x = SumsWhatHasGaps(), torch.randn(6, 16)
    with all_on_host(open_artifact(path), Allowed()) as ranks:
        for got, want in zip(ranks.entry_points["forward"].flat([x]), model(x), strict=True):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ("values", ModelError, "up of the ranks is no part of the whole model's"),
        ("zeros", ModelError, "how fused is cut cannot be seen"),
        ("number", ProofError, "not the original model's|answer differently"),
    ],
)
def test_a_model_that_is_not_the_whole_one(tmp_path: Path, wrong: str, error: type, text: str):
    kwargs = {"factory": SHARES_ITSELF["model"]["factory"], "kwargs": {"wrong": wrong}}
    with pytest.raises(error, match=text):
        aotair.build(SHARES_ITSELF | {"model": kwargs}, tmp_path / "a.aotair")
    assert not torch.distributed.is_initialized() and not list(tmp_path.iterdir())


def test_a_build_in_a_process_that_is_a_rank_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(ModelError, match="has a process group already"):
        aotair.build(SHARES_ITSELF, tmp_path / "a.aotair")


@pytest.mark.parametrize(
    ("parts", "text"),
    [({"mesh": {}}, "add mesh"), ({"model": {"pretrained": "x", "task": "text-generation"}}, "parallel: model is for")],
)
def test_a_wrong_recipe(tmp_path: Path, parts: dict, text: str):
    with pytest.raises(RecipeError, match=text):
        aotair.build(SHARES_ITSELF | parts, tmp_path / "a.aotair")
