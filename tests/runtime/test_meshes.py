"""One artifact for several meshes, in processes over Gloo: each number of ranks takes its program, over one weights
file."""

import json
from pathlib import Path

import pytest
import torch
from marks import long
from models import Shared
from rank_processes import checkpoints, reloaded, said, started
from rank_scenarios import ids
from several_meshes import MESHES, SHARED, built, over

import aotair
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.errors import ArgumentError, RankError
from aotair_runtime.weights.golden import replay_golden

SIZES = [(batch, seq) for batch in (1, 2, 3) for seq in (1, 4)]


@pytest.fixture(scope="module")
def several(common_folder: Path) -> Path:
    return built(common_folder, SHARED, MESHES)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has no ranks beside it."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def answers() -> list[torch.Tensor]:
    """What the original answers to the scenarios' calls, one after the other."""
    model = load_model(job_of(parse_recipe(over(SHARED, {}))))
    return [model(ids(batch, seq, 3 * batch)) for batch, seq in SIZES]


@pytest.mark.parametrize("mesh", [mesh if mesh != {"tp": 4} else long(mesh) for mesh in MESHES], ids=str)
def test_each_number_of_ranks_takes_its_program_and_answers_as_that_mesh_alone(
    several: Path, common_folder: Path, tmp_path: Path, mesh: dict[str, int]
):
    count = mesh.get("tp", 1)
    found = said(started(count, "chosen", tmp_path, several, built(common_folder, SHARED, mesh)), tmp_path)
    want = answers()
    for rank, (here, by_itself) in enumerate(found):
        assert here["mesh"] == by_itself["mesh"] == (f"tp={count}" if mesh else "1 rank") and here["rank"] == rank
        assert here["answers"] == by_itself["answers"] == found[0][0]["answers"], "bit for bit"
        for got, tensor in zip(here["answers"], want, strict=True):
            torch.testing.assert_close(torch.tensor(got), tensor, atol=1e-5, rtol=1e-5)


def test_a_process_without_a_group_is_one_rank(several: Path, alone: None):
    with aotair.load(several, enable_output_clone=True) as model:
        assert model.program.mesh == () and model.rank == 0 and not torch.distributed.is_initialized()
        for got, want in zip((model(ids(b, s, 3 * b)) for b, s in SIZES), answers(), strict=True):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
        assert all(result.within for result in replay_golden(model))


def test_a_number_of_ranks_without_a_program_is_refused_on_each(several: Path, tmp_path: Path):
    for one in said(started(3, "meets", tmp_path, several), tmp_path):
        assert one["error"].startswith("RankError") and "no program for 3 ranks" in one["error"]
        assert "1 rank; tp=2; tp=4" in one["error"] and one["seconds"] < 10


def test_a_process_alone_is_refused_where_no_program_is_for_one_rank(common_folder: Path, tmp_path: Path, alone: None):
    path = aotair.build(over(SHARED, MESHES[1:]), tmp_path / "a.aotair")
    with pytest.raises(RankError, match="no program for 1 rank") as caught:
        aotair.load(path)
    assert "tp=2; tp=4" in caught.value.expected and "torchrun" in caught.value.fix
    with pytest.raises(RankError, match="this process is alone"):
        aotair.load(path, mesh={"tp": 4})


@pytest.mark.parametrize("mesh", [{"tp": 0}, {"tp": "2"}, {"tp": True}, {2: 2}, "tp=2", [{"tp": 2}]], ids=str)
def test_what_is_no_mesh_is_refused(several: Path, mesh: object):
    with pytest.raises(ArgumentError, match="mesh= is wrong"):
        aotair.load(several, mesh=mesh)


def test_a_mesh_is_named_where_two_have_as_many_ranks(tmp_path: Path):
    meshes = [{}, {"tp": 2}, {"dp": 2, "tp": 1}]
    path = aotair.build(over(SHARED, meshes), tmp_path / "a.aotair")
    texts = [json.dumps(mesh) for mesh in meshes[1:]]
    first, second = said(started(2, "named", tmp_path / "ranks", path, *texts), tmp_path / "ranks")
    for rank, one in enumerate((first, second)):
        assert [one[text]["mesh"] for text in (*texts, "{}")] == ["tp=2", "dp=2, tp=1", "1 rank"]
        assert one["unnamed"].startswith("RankError") and "several programs for 2 ranks" in one["unnamed"]
        assert one["unlike"].startswith("RankError") and "came with another mesh" in one["unlike"]
        assert one["{}"]["rank"] == 0 and one[texts[0]]["rank"] == rank
        for mesh in (*texts, "{}"):
            for got, want in zip(one[mesh]["answers"], answers(), strict=True):
                torch.testing.assert_close(torch.tensor(got), want, atol=1e-5, rtol=1e-5)


def test_a_process_group_of_some_ranks_takes_the_program_for_so_many(several: Path, tmp_path: Path):
    found = said(started(4, "in_groups", tmp_path, several), tmp_path)
    assert [None if one is None else one["mesh"] for one, _ in found] == ["1 rank", "tp=2", "tp=2", None]
    assert [one["rank"] for one, _ in found[:3]] == [0, 0, 1]
    assert {every["mesh"] for _, every in found} == {"tp=4"}


def test_other_weights_come_to_the_ranks_of_the_program_that_they_have_taken(several: Path, tmp_path: Path):
    torch.manual_seed(9)
    model = Shared()
    found = said(started(2, "reloads", tmp_path, several, *checkpoints(model, tmp_path)), tmp_path)
    reloaded(found, model(ids(2, 4)))


def test_commands_speak_of_the_program_that_their_ranks_have_taken(several: Path, tmp_path: Path):
    first, second = said(started(2, "commands", tmp_path, several), tmp_path)
    which = "the program for tp=2; the artifact has others: 1 rank; tp=4"
    (verified, text), (measured, times), (code, refusal) = first
    assert (verified, measured, code) == (0, 0, 1) and which in text and which in times
    assert text.count(" ok") == 2 and "for another number of ranks" in refusal
    assert [code for code, _ in second] == [0, 0, 1] and " ok" not in second[0][1]
