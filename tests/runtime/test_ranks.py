"""Artifacts of several ranks, in processes over Gloo: answers, agreement, other weights, and who is lost."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from cases import RECIPES, SHARED_DECODE
from models import Deep, Shared
from rank_processes import checkpoints, reloaded, said, started
from rank_scenarios import decode_inputs, ids
from written import WRITTEN

import aotair
from aotair.model.load import load_model
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.errors import ArgumentError, RankError
from aotair_runtime.memory.sizes import tensor_bytes

SIZES = [(batch, seq) for batch in (1, 2, 3) for seq in (1, 4)]


def original() -> torch.nn.Module:
    """What the artifact was built of."""
    return load_model(job_of(parse_recipe(RECIPES["shared"] | {"mesh": {}, "parallel": "auto"})))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return aotair.build(RECIPES["shared"], tmp_path_factory.mktemp("ranks") / "shared.aotair")


def test_all_ranks_answer_as_the_original_and_refuse_what_differs(shared: Path, tmp_path: Path):
    first, second = said(started(2, "calls", tmp_path, shared), tmp_path)
    model = original()
    for number, size in enumerate(SIZES):
        want = model(ids(*size, number))
        for answers in (first["answers"], second["answers"], first["driven"]):
            torch.testing.assert_close(torch.tensor(answers[number]), want, atol=1e-5, rtol=1e-5)
    assert first["answers"] == second["answers"]
    for one in (first, second):
        assert "called differently" in one["differ"] and "rank 1: entry point 0, sizes [2, 4]" in one["differ"]
        assert one["dtype"].startswith("DTypeError") and one["closed"].startswith("ClosedError")
        assert one["sparse"].startswith("ArgumentError") and one["ragged"].startswith("ArgumentError")
        assert one["golden"] == [True, True] and one["weights"][0] == one["weights"][1]
        assert "one rank" in one["profile"] and "one rank" in one["snapshot"]
    assert all(text.startswith("ArgumentError") for text in first["none"]) and len(first["none"]) == 3
    assert first["refused"].startswith("RankError") and "rank 1: refused its inputs" in first["refused"]
    assert "rank 1: refused its inputs" in first["text"] and second["text"].startswith("ArgumentError")
    assert second["refused"].startswith("ShapeError") and first["again"] == second["again"]
    assert second["followed"] == len(SIZES) + 40 and first["misfit"].startswith("ShapeError")
    places = set()  # each answer has the number of its call added to it
    for number, got in enumerate(first["at_once"]):
        model.calls.fill_(-1)
        ahead = torch.tensor(got) - model(ids(1, 1 + number % 4, number))
        places.add(round(float(ahead.mean())))
        torch.testing.assert_close(ahead, ahead.round(), atol=1e-4, rtol=0)
        assert ahead.round().unique().numel() == 1
    assert places == set(range(len(SIZES) + 1, len(SIZES) + 41))


def test_what_a_rank_refuses_before_it_looks_at_sizes_is_told_to_the_others(tmp_path: Path):
    path = aotair.build(WRITTEN, tmp_path / "a.aotair")
    first, second = said(started(2, "refuses_first", tmp_path, path), tmp_path)
    kinds = {"again": "Argument", "names": "Argument", "outputs": "Argument", "turned": "Shape", "shared": "Argument"}
    for what, kind in kinds.items():
        assert first[what][0].startswith(f"{kind}Error"), first[what][0]
        assert second[what][0].startswith("RankError") and "rank 0: refused its inputs" in second[what][0]
        assert max(first[what][1], second[what][1]) < 10, "nobody waits until the time is up"
        assert first[what][2] == second[what][2] != 0 and second[what][3] == 0, "and nothing is written"


def test_lists_of_the_host_go_with_a_call_to_the_other_ranks(tmp_path: Path):
    recipe = RECIPES["decode"]
    first, second = said(started(2, "lists", tmp_path, aotair.build(recipe | SHARED_DECODE, tmp_path / "a")), tmp_path)
    model = load_model(job_of(parse_recipe(recipe)))
    for number, got in enumerate(first["answers"]):
        want = model(*decode_inputs(1 + number % 3))
        torch.testing.assert_close(torch.tensor(got), want, atol=1e-5, rtol=1e-5)
    assert second["followed"] == 9 and len(first["refused"]) == 5
    assert all(text.startswith(("ArgumentError", "ShapeError")) for text in first["refused"]), first["refused"]


def test_other_weights_come_whole_and_go_to_their_ranks(shared: Path, tmp_path: Path):
    torch.manual_seed(9)
    model = Shared()
    first, second = said(started(2, "reloads", tmp_path, shared, *checkpoints(model, tmp_path)), tmp_path)
    reloaded((first, second), model(ids(2, 4)))
    assert second["failed"].startswith("WeightsError")
    assert first["failed"].startswith("RankError") and "rank 1 failed: reading the weights" in first["failed"]
    for one in (first, second):
        assert all("came with other weights than the others" in text for text in one["unlike"])
        assert "rank 1: " in one["unlike"][0] and str(shared) in one["unlike"][0]


def test_a_process_that_leaves_its_model_open_ends_as_it_should(shared: Path, tmp_path: Path):
    """Without an end of its groups, Gloo's threads abort most of such processes."""
    for turn in range(4):
        folder = tmp_path / str(turn)
        first, second = said(started(2, "leaves_open", folder, shared), folder)
        assert first == second


def test_stages_answer_as_the_whole_model_and_take_its_checkpoint(tmp_path: Path):
    path = aotair.build(RECIPES["deep"], tmp_path / "deep.aotair")
    torch.manual_seed(9)
    second = Deep()
    first = load_model(job_of(parse_recipe(RECIPES["deep"] | {"mesh": {}, "parallel": "auto"})))
    for one in said(started(2, "reloads", tmp_path, path, *checkpoints(second, tmp_path)), tmp_path):
        torch.testing.assert_close(torch.tensor(one["before"]), first(ids(2, 4)), atol=1e-5, rtol=1e-5)
        for layer in (*first.layers, *second.layers):
            layer.seen.zero_()
        torch.testing.assert_close(torch.tensor(one["after"]), second(ids(2, 4)), atol=1e-5, rtol=1e-5)
        assert one["stayed"] and one["captures"] == 2 and one["kept"] == one["after"]
        for layer in second.layers:
            layer.seen.zero_()


def test_a_rank_that_came_with_something_else_is_named_by_all(shared: Path, tmp_path: Path):
    other = aotair.build(RECIPES["shared"] | {"buckets": {"batch": [2], "seq": [4]}}, tmp_path / "other.aotair")
    for one in said(started(2, "meets", tmp_path / "odd", shared, other), tmp_path / "odd"):
        assert one["error"].startswith("RankError") and "came with another artifact" in one["error"]
        assert one["seconds"] < 10


def test_another_number_of_ranks_than_the_mesh_has(shared: Path, tmp_path: Path):
    for one in said(started(3, "meets", tmp_path, shared), tmp_path):
        assert "for another number of ranks" in one["error"] and "expected: 2 (tp=2)" in one["error"]


def test_a_process_that_is_alone(shared: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RankError, match="this process is alone") as caught:
        aotair.load(shared)
    assert "torchrun --nproc-per-node 2" in caught.value.fix


@pytest.mark.parametrize("options", [{"rank_timeout": 0}, {"rank_timeout": "1"}, {"group": "all"}])
def test_wrong_options(shared: Path, options: dict):
    with pytest.raises(ArgumentError, match="is wrong"):
        aotair.load(shared, **options)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_ends_is_named_at_once(shared: Path, tmp_path: Path, lost: int):
    found = said(started(2, "loses", tmp_path, shared, lost, "ends"), tmp_path, expected=1)
    one = found[1 - lost]
    assert one["error"].startswith("RankError") and f"rank {lost} is gone" in one["error"]
    assert one["seconds"] < 4 and one["after"].startswith("ClosedError")


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_drives_or_is_driven_and_ends_is_named_at_once(shared: Path, tmp_path: Path, lost: int):
    one = said(started(2, "led", tmp_path, shared, lost), tmp_path, expected=1)[1 - lost]
    assert one["error"].startswith("RankError") and f"rank {lost} is gone" in one["error"]
    assert one["seconds"] < 10 and one["after"].startswith("ClosedError")


def test_a_rank_that_stands_still_is_named_within_the_time_that_was_asked_for(shared: Path, tmp_path: Path):
    processes = started(2, "loses", tmp_path, shared, 1, "stands")
    stop(processes[1].pid, tmp_path)
    processes[0].wait(60)
    processes[1].kill()
    one = said(processes, tmp_path, expected=1)[0]
    assert one["error"].startswith("RankError") and "rank 1 did not answer within 4 s" in one["error"]
    assert one["seconds"] < 15 and one["after"].startswith("ClosedError")


def stop(pid: int, folder: Path) -> None:
    """Let a process that says that it is ready stand still."""
    end = time.monotonic() + 60
    while not (folder / "ready").exists() and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(pid, signal.SIGSTOP)


def test_ranks_that_lost_each_other_load_again_in_the_same_processes(shared: Path, tmp_path: Path):
    processes = started(2, "loses", tmp_path, shared, 1, "pauses")
    stop(processes[1].pid, tmp_path)
    time.sleep(12)  # longer than a rank is waited for, and than the other one looks for who is to blame
    os.kill(processes[1].pid, signal.SIGCONT)
    first, second = said(processes, tmp_path)
    assert "rank 1 did not answer" in first["error"] and second["error"].startswith("RankError")
    assert first["again"] == second["again"]
    torch.testing.assert_close(torch.tensor(first["again"]), original()(ids(2, 4)), atol=1e-5, rtol=1e-5)


def test_random_sizes_and_delays(shared: Path, tmp_path: Path):
    first, second = said(started(2, "random_calls", tmp_path, shared, 200), tmp_path)
    assert first == second and first["refusals"] > 0
    model = original()
    for number, batch, seq, total in first["answers"]:
        model.calls.zero_()
        assert abs(model(ids(batch, seq, number)).double().sum().item() - total) < 1e-3


def test_what_a_rank_holds_is_its_part(shared: Path):
    from aotair_runtime.artifact.open import open_artifact

    zero, one = (open_artifact(shared, rank) for rank in (0, 1))
    sizes = {c.name: tensor_bytes(c) for c in zero.program.constants}
    for constant, mine, other in zip(zero.program.constants, zero.constants, one.constants, strict=True):
        assert mine.shape == other.shape == constant.shape and mine.nbytes == sizes[constant.name]
        whole = constant.shard is None
        assert torch.equal(mine, other) == whole, constant.name


def test_a_weight_that_a_rank_copied_is_still_there_once_it_is_packed(tmp_path: Path):
    from aotair.prove.prove import all_on_host
    from aotair_runtime.artifact.open import open_artifact
    from aotair_runtime.confine.op_table import Allowed
    from aotair_runtime.devices import onednn_library

    if onednn_library.library() is None:
        pytest.skip(f"nothing is packed: {onednn_library.why_none()}")

    torch.manual_seed(0)
    wide = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128))
    x = {"shape": ["n", 128], "dtype": "float32", "pad": "any"}
    ranks = {"mesh": {"tp": 2}, "parallel": {"0": "colwise", "2": "rowwise"}}
    path = aotair.build(model=wide, out=tmp_path / "wide.aotair", inputs={"input": x}, buckets={"n": [2]}, **ranks)
    artifact = open_artifact(path)
    before = [tensor.clone() for tensor in artifact.constants]
    with all_on_host(artifact, Allowed()) as model:
        packed = {number for number, _ in model.models[0]._resident.packed}
    assert packed & artifact.in_file and packed - artifact.in_file  # by rows in the file, by columns a copy of it
    for mine, was in zip(artifact.constants, before, strict=True):
        assert torch.equal(mine, was)
