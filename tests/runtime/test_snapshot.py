"""Snapshots of calls: replayed elsewhere they give what the call gave, taking one changes nothing, and a file that is
not good, or of another model, is refused in one sentence."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from cases import NOTEBOOK, recipe
from click.testing import CliRunner
from nodes import Node

import aotair
from aotair.cli import main
from aotair_runtime import Model
from aotair_runtime.artifact.open import read_golden
from aotair_runtime.errors import ArgumentError, CaptureError, ClosedError, ShapeError, SnapshotError
from aotair_runtime.snapshot.file import read_snapshot, write_snapshot
from aotair_runtime.snapshot.replay import fitting_entry, replay
from aotair_runtime.snapshot.take import MOST_FAILED
from aotair_runtime.weights.golden import golden_inputs

NAMES = (
    "encoder",
    "linear",
    "counter",
    "swap",
    "cache",
    "structured",
    "views",
    "streams",
    "branches",
    "halves",
    "decode",
)


def inputs(model: Model, number: int = -1) -> list:
    """The golden inputs of a bucket of the only entry point, each time as new tensors."""
    (entry,) = model.program.entry_points
    given = golden_inputs(read_golden(model.artifact), entry, number % len(entry.buckets), model.device)
    return [tensor.tolist() if spec.host else tensor for spec, tensor in zip(entry.inputs, given)]


def left_behind(model: Model, given: list) -> list[torch.Tensor]:
    """Outputs, then inputs, then states after a call."""
    (entry,) = model.entry_points.values()
    outputs = [output.clone() for output in entry.flat(given)]
    after = [tensor.clone() for tensor in given if isinstance(tensor, torch.Tensor)]
    return [*outputs, *after, *(state.clone() for state in model.state.values())]


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(
        torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(some, others)
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_call_gives_elsewhere_what_it_gives_here(name: str, node: Node, tmp_path: Path):
    file = tmp_path / "call.safetensors"
    with node.load(name, enable_output_clone=True) as model:
        left_behind(model, inputs(model))  # so that states are not those of the build
        given = inputs(model)
        model.snapshot(file, *given)
        want = left_behind(model, given)
    with node.load(name, enable_output_clone=True) as other:
        snapshot = read_snapshot(file)
        got = list(replay(other, snapshot, str(file)).values())
        states = [state.clone() for state in other.state.values()]
        assert same(got, want[: len(got)])
        assert same(states, want[len(want) - len(states) :])


@pytest.mark.parametrize("name", ["counter", "swap", "cache", "branches"])
def test_taking_one_changes_nothing(name: str, node: Node, tmp_path: Path):
    found = []
    for takes in (False, True):
        with node.load(name, enable_output_clone=True) as model:
            results = []
            for _ in range(3):
                given = inputs(model)
                if takes:
                    model.snapshot(tmp_path / "call.safetensors", *given)
                results += left_behind(model, given)
            found.append(results)
            assert model.stats().calls == 3
    assert same(*found)


def test_it_says_what_it_was_taken_of(built, tmp_path: Path):
    file = tmp_path / "call"
    with aotair.load(built("linear"), device="cpu") as model:
        x = torch.arange(12.0).view(3, 4)
        model.snapshot(file, x)
    found = read_snapshot(file)
    assert (found.model, found.entry, found.device, found.error, found.reloads) == ("linear", "forward", "cpu", "", 0)
    assert (found.torch_version, found.aotair_version) == (torch.__version__, aotair.__version__)
    assert torch.equal(found.inputs["x"], x) and found.states == {}
    assert set(safetensors.torch.load_file(file)) == {"about", "in.x"}  # any reader of such files opens it


def test_arguments_that_a_call_would_refuse_are_refused(built, tmp_path: Path):
    file = tmp_path / "call"
    with aotair.load(built("linear"), device="cpu") as model:
        for args, kind in (((), ArgumentError), ((torch.ones(99, 4),), ShapeError), ((7,), ArgumentError)):
            with pytest.raises(kind):
                model.snapshot(file, *args)
        with pytest.raises(ArgumentError, match="no such entry point"):
            model.snapshot(file, torch.ones(1, 4), entry="backward")
        with pytest.raises(SnapshotError, match="cannot be written"):
            model.snapshot(tmp_path / "none" / "call", torch.ones(1, 4))
    assert not file.exists()
    with pytest.raises(ClosedError):
        model.snapshot(file, torch.ones(1, 4))


def test_each_entry_point_has_its_calls(tmp_path: Path):
    path = aotair.build(NOTEBOOK, tmp_path / "notebook.aotair")
    rows = torch.tensor([2])
    with aotair.load(path, enable_output_clone=True) as model:
        model.write(torch.ones(1, 4), rows)
        with pytest.raises(ArgumentError, match="several entry points"):
            model.snapshot(tmp_path / "call", torch.ones(2, 4))
        model.snapshot(tmp_path / "call", query=torch.ones(2, 4), entry="read")
        want = [out.clone() for out in model.read.flat([torch.ones(2, 4)])]
    with aotair.load(path, enable_output_clone=True) as other:
        assert same(list(replay(other, read_snapshot(tmp_path / "call"), "").values()), want)


# ---- calls that fail -------------------------------------------------------------------------------------------------


def failing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays write into states, and fail then."""
    (entry,) = model.entry_points.values()

    def fail(plan, tensors, users, lists, apart):
        for state in model.state.values():
            state.add_(100)
        raise CaptureError("the device is gone")

    monkeypatch.setattr(entry, "_replay", fail)


def test_a_call_that_fails_leaves_its_snapshot(node: Node, tmp_path: Path, monkeypatch, caplog):
    with node.load("counter", snapshot_on_error=tmp_path, enable_output_clone=True) as model:
        given = inputs(model)
        left_behind(model, given)
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "aotair.runtime"):
            failing(model, patch)
            with pytest.raises(CaptureError, match="the device is gone"):
                model(*given)
        (file,) = tmp_path.iterdir()
        assert str(file) in caplog.text
        found = read_snapshot(file)
        assert found.error == "CaptureError: the device is gone"
        assert found.states["count"].tolist() == [1.0], "the state before the call"
    with node.load("counter", enable_output_clone=True) as other:
        (got,) = replay(other, found, str(file)).values()
        assert torch.equal(got, given[0] * 2) and other.state["count"].item() == 2


def test_misfits_leave_none_and_no_more_than_some_are_written(built, tmp_path: Path, monkeypatch):
    with aotair.load(built("counter"), device="cpu", snapshot_on_error=tmp_path) as model:
        with pytest.raises(ShapeError):
            model(torch.ones(99, 4))
        assert not list(tmp_path.iterdir())
        failing(model, monkeypatch)
        for _ in range(MOST_FAILED + 3):
            with pytest.raises(CaptureError):
                model(torch.ones(2, 4))
    assert len(list(tmp_path.iterdir())) == MOST_FAILED


def test_the_calls_own_error_is_raised_where_no_snapshot_can_be_written(built, tmp_path: Path, monkeypatch, caplog):
    folder = tmp_path / "errors"
    folder.mkdir()
    with aotair.load(built("counter"), device="cpu", snapshot_on_error=folder) as model:
        folder.rmdir()
        failing(model, monkeypatch)
        with pytest.raises(CaptureError, match="the device is gone"):
            model(torch.ones(2, 4))
    assert "no snapshot of it was written" in caplog.text


def test_answers_are_as_without(node: Node, tmp_path: Path):
    for name in NAMES:
        found = []
        for options in ({}, {"snapshot_on_error": tmp_path}):
            with node.load(name, enable_output_clone=True, **options) as model:
                found.append(left_behind(model, inputs(model)))
        assert same(*found), name
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", [7, "no such folder", __file__])
def test_a_folder_that_is_none_is_refused(folder: object, built):
    with pytest.raises(ArgumentError, match="snapshot_on_error= is wrong"):
        aotair.load(built("linear"), snapshot_on_error=folder)


# ---- files that are not good -----------------------------------------------------------------------------------------


@pytest.fixture
def good(built, tmp_path: Path) -> Path:
    with aotair.load(built("counter"), device="cpu") as model:
        model.snapshot(tmp_path / "good", torch.ones(2, 4))
    return tmp_path / "good"


def test_every_cut_and_many_a_changed_byte_is_refused_or_read_whole(good: Path, tmp_path: Path):
    data = good.read_bytes()
    for length in range(len(data)):
        (tmp_path / "bad").write_bytes(data[:length])
        with pytest.raises(SnapshotError):
            read_snapshot(tmp_path / "bad")
    for place in range(len(data)):
        (tmp_path / "bad").write_bytes(data[:place] + bytes([data[place] ^ 0x15]) + data[place + 1 :])
        try:
            found = read_snapshot(tmp_path / "bad")
        except SnapshotError as error:
            assert "\x1b" not in str(error)
        else:
            assert isinstance(found.model, str) and isinstance(found.reloads, int)


def about(good: Path, **changes: object) -> dict[str, torch.Tensor]:
    tensors = safetensors.torch.load_file(good)
    said = json.loads(bytes(tensors["about"].tolist())) | changes
    return tensors | {"about": torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)}


@pytest.mark.parametrize(
    "change, match",
    [
        (lambda good: about(good, version=2), "another version"),
        (lambda good: about(good, model=7), "malformed"),
        (lambda good: about(good, reloads=True), "malformed"),
        (lambda good: about(good, error="x" * 9000), "malformed"),
        (lambda good: about(good) | {"about": torch.ones(3)}, "malformed"),
        (lambda good: about(good) | {"about": torch.tensor([91, 93], dtype=torch.uint8)}, "another version"),
        (lambda good: about(good) | {"about": torch.full((9,), 255, dtype=torch.uint8)}, "malformed"),
        (lambda good: {"in.x": torch.ones(2)}, "no snapshot of a call"),
        (lambda good: about(good) | {"weights\x1b[2J": torch.ones(2)}, "a tensor that none has"),
    ],
)
def test_what_it_says_of_itself_is_checked(good: Path, tmp_path: Path, change, match: str):
    safetensors.torch.save_file(change(good), tmp_path / "bad")
    with pytest.raises(SnapshotError, match=match):
        read_snapshot(tmp_path / "bad")


def test_what_is_no_file_is_refused(tmp_path: Path):
    (tmp_path / "empty").touch()
    for path in (tmp_path / "none", tmp_path, tmp_path / "empty", "a\0b"):
        with pytest.raises(SnapshotError):
            read_snapshot(path)


def test_a_call_of_another_model_is_refused(good: Path, built):
    with aotair.load(built("counter"), device="cpu") as model:
        found, program = read_snapshot(good), model.program
        assert fitting_entry(program, found, "").name == "forward"
        count = found.states["count"]
        for other, match in (
            (replace(found, entry="decode"), "no entry point"),
            (replace(found, inputs={}), "of the inputs, 'x'"),
            (replace(found, inputs={"x": torch.ones(2, 4, dtype=torch.float64)}), "of the inputs, 'x'"),
            (replace(found, inputs=dict(found.inputs) | {"y": torch.ones(1)}), "of the inputs, 'y'"),
            (replace(found, states={}), "of the states, 'count'"),
            (replace(found, states={"count": torch.ones(2)}), "of the states, 'count'"),
            (replace(found, states={"count": count.double()}), "of the states, 'count'"),
            (replace(found, inputs={"x": torch.ones(99, 4)}), "sizes of its inputs"),
            (replace(found, inputs={"x": torch.ones(2)}), "sizes of its inputs"),
        ):
            with pytest.raises(SnapshotError, match=f"of another model: .*{match}"):
                replay(model, other, "call")
        assert model.state["count"].item() == 0, "nothing was changed"


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_replays(good: Path, built, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    run = CliRunner().invoke(main, ["run", str(built("counter")), "--snapshot", str(good), "-o", str(out)])
    assert run.exit_code == 0 and run.output.startswith("output: float32[2, 4], from 1 to 1"), run.output
    assert torch.equal(safetensors.torch.load_file(out)["output"], torch.ones(2, 4))


def test_the_command_says_what_is_other_here(good: Path, tmp_path: Path):
    other = aotair.build(
        recipe("Counter", {"x": {"shape": ["n", 4], "dtype": "float32"}}, {"n": [2]}), tmp_path / "other.aotair"
    )
    write_snapshot(good, replace(read_snapshot(good), reloads=2, error="CaptureError: \x1b[2J"))
    run = CliRunner().invoke(main, ["run", str(other), "--snapshot", str(good)])
    assert run.exit_code == 0, run.output
    assert "another artifact of the model" in run.stderr and "replaced 2 times" in run.stderr
    assert "it failed: CaptureError: \\x1b[2J" in run.stderr


def test_the_command_refuses_in_one_sentence(good: Path, built, tmp_path: Path):
    (tmp_path / "cut").write_bytes(good.read_bytes()[:-1])
    artifact = str(built("linear"))
    for args, match in (
        (["--snapshot", str(good)], "of another model"),
        (["--snapshot", str(tmp_path / "cut")], "no good snapshot"),
        (["--snapshot", str(tmp_path / "none")], "cannot be read"),
        ([], "INPUTS, or --snapshot"),
        ([str(good), "--snapshot", str(good)], "INPUTS, or --snapshot"),
        (["--snapshot", str(good), "--entry", "forward"], "--entry goes with"),
    ):
        run = CliRunner().invoke(main, ["run", artifact, *args])
        assert run.exit_code in (1, 2) and match in run.output and "Traceback" not in run.output, run.output
