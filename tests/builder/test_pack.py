"""The artifact on disk: the same bytes for the same recipe, each weight once, small beside its weights."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml
from cases import RECIPES
from exports import built_of, model_of, shaped

import aotair
from aotair.errors import InternalError, ProofError, RecipeError
from aotair.pack import check_written, lay_down, pack, write_tensors, written_aside
from aotair.program import Built
from aotair.prove.prove import Proved, on_host
from aotair_runtime.artifact.digests import digest
from aotair_runtime.artifact.open import read_program
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.errors import CaptureError
from aotair_runtime.weights.golden import Comparison

# The command, once for each pair of a recipe and a place.
BUILDS = """
import sys
from aotair.cli import main
for recipe, out in zip(sys.argv[1::2], sys.argv[2::2]):
    main(["build", recipe, "-o", out], standalone_mode=False)
"""


def test_two_builds_in_two_processes_are_identical(tmp_path: Path):
    names, seeds = ("encoder", "tied", "structured", "counter"), ("1", "4242")
    for name in names:
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(RECIPES[name]))
    for seed in seeds:
        pairs = [str(tmp_path / file) for name in names for file in (f"{name}.yaml", f"{name}{seed}.aotair")]
        command = [sys.executable, "-c", BUILDS, *pairs]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
    for name in names:
        digests = []
        for seed in seeds:
            out = tmp_path / f"{name}{seed}.aotair"
            files = [file for file in sorted(out.rglob("*")) if file.is_file()]
            digests.append({str(file.relative_to(out)): digest(file) for file in files})
        assert digests[0] == digests[1], name
        assert len(digests[0]) == 7


def test_weights_are_mapped_not_copied(built):
    from aotair_runtime.artifact.open import open_artifact

    artifact = open_artifact(built("encoder"))
    storages = {tensor.untyped_storage().data_ptr() for tensor in artifact.constants}
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "weights.safetensors" in line]
    spans = [tuple(int(part, 16) for part in line.split()[0].split("-")) for line in mapped]
    assert storages and all(any(low <= s < high for low, high in spans) for s in storages)


# ---- a directory written aside ---------------------------------------------------------------------------------------

ROWS = shaped("n", 3)
MODEL = model_of(lambda self, x: x * self.w, w=torch.ones(3))


def small() -> Built:
    return built_of(MODEL, {"x": ROWS}, {"n": [2, 4]})


def artifact_at(out: Path, text: str) -> None:
    with written_aside(out) as folder:
        (folder / "program.msgpack").write_text(text)


def test_a_directory_appears_whole_and_with_everybodys_rights(tmp_path: Path):
    out = tmp_path / "deep" / "er" / "a.aotair"
    with written_aside(out) as folder:
        assert folder.parent == out.parent and folder != out and not out.exists()
        (folder / "file").write_text("text")
    assert (out / "file").read_text() == "text" and out.stat().st_mode & 0o777 == 0o755
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_where_the_block_fails(tmp_path: Path, error: type):
    with pytest.raises(error), written_aside(tmp_path / "a.aotair") as folder:
        (folder / "file").write_text("text")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_an_artifact_is_replaced_at_the_end_and_kept_where_that_is_not_reached(tmp_path: Path):
    out = tmp_path / "a.aotair"
    artifact_at(out, "first")
    with pytest.raises(ValueError), written_aside(out) as folder:
        (folder / "program.msgpack").write_text("never")
        raise ValueError
    assert (out / "program.msgpack").read_text() == "first"
    with written_aside(out) as folder:
        (folder / "program.msgpack").write_text("second")
        assert (out / "program.msgpack").read_text() == "first"
    assert (out / "program.msgpack").read_text() == "second" and list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_what_is_no_artifact_is_not_replaced(tmp_path: Path, make):
    make(tmp_path / "precious")
    with (
        pytest.raises(RecipeError, match="something else is already there") as caught,
        written_aside(tmp_path / "precious"),
    ):
        pytest.fail("nothing is begun")
    assert caught.value.where == str(tmp_path / "precious") and "-o" in caught.value.fix
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious"]


# ---- what is written -------------------------------------------------------------------------------------------------


def test_what_is_laid_down_is_what_a_node_reads(tmp_path: Path):
    built = small()
    artifact = lay_down(built, tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["program.msgpack", "weights.safetensors"]
    assert artifact.program == replace(built.program, files=artifact.program.files)
    (file,) = artifact.program.files
    assert (file.name, file.nbytes) == ("weights.safetensors", (tmp_path / file.name).stat().st_size)
    assert file.sha256 == digest(tmp_path / file.name)
    assert torch.equal(artifact.constants[0], MODEL.w)


def test_the_whole_has_four_files_and_reads_as_it_was_proved(tmp_path: Path):
    built = small()
    artifact = lay_down(built, tmp_path)
    golden = {"forward.0.in.x": torch.ones(2, 3), "forward.0.out.0": torch.zeros(2, 3)}
    program = pack(
        Proved(replace(artifact.program, name="proved"), golden),
        {"report.html": "<html>ü</html>", "report/f.html": "f"},
        tmp_path,
    )
    assert [file.name for file in program.files] == ["weights.safetensors", "golden.safetensors"]
    assert read_program(tmp_path) == program and program.name == "proved"
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "<html>ü</html>"
    assert (tmp_path / "report" / "f.html").read_text() == "f"
    stored = safetensors.torch.load_file(tmp_path / "golden.safetensors")
    assert all(torch.equal(stored[name], tensor) for name, tensor in golden.items()) and len(stored) == 2


def test_the_same_is_written_as_the_same_bytes(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        lay_down(small(), tmp_path / name)
    for file in ("program.msgpack", "weights.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


BASE = torch.arange(6.0)


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": BASE, "b": BASE},
        {"a": BASE[:3], "b": BASE[3:]},
        {"a": BASE.view(2, 3), "b": BASE.view(2, 3).t()},
        {"a": BASE.expand(4, 6)},
        {"a": BASE[::2]},
        {"a": torch.empty(0, 3), "b": torch.empty(0)},
        {"a": torch.tensor(2.5)},
        {"a": torch.tensor([1 + 2j]).conj(), "b": torch.tensor([1 + 2j]).conj().imag},
        {"a": BASE.to(torch.bfloat16), "b": BASE > 2, "c": BASE.to(torch.int8)},
        {},
    ],
)
def test_tensors_of_every_kind_are_written_apart(tmp_path: Path, tensors: dict):
    file = write_tensors(tensors, tmp_path / "t.safetensors")
    stored = safetensors.torch.load_file(tmp_path / "t.safetensors")
    assert stored.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(stored[name], tensor.resolve_conj().resolve_neg()) and stored[name].dtype == tensor.dtype
    assert (tmp_path / "t.safetensors").stat().st_mode & 0o777 == 0o644
    assert (file.nbytes, file.sha256) == ((tmp_path / file.name).stat().st_size, digest(tmp_path / file.name))


def test_a_program_that_cannot_be_read_back_is_our_fault(tmp_path: Path):
    built = small()
    bad = replace(built, program=replace(built.program, arena=-1))
    with pytest.raises(InternalError, match="the program that was written cannot be read") as caught:
        lay_down(bad, tmp_path)
    assert caught.value.__cause__ is not None


# ---- what was written can be used ------------------------------------------------------------------------------------


DOUBLE = model_of(lambda self, x: x * 2)
PARTS = {"inputs": {"x": {"shape": ["n"], "dtype": "float32"}}, "buckets": {"n": [2, 4]}}


def test_each_way_of_loading_is_tried(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "aotair.pack.all_on_host", lambda *given, **options: seen.append(options) or on_host(*given, **options)
    )
    aotair.build(model=DOUBLE, out=tmp_path / "a.aotair", jobs=1, **PARTS)
    assert [(way["clone_input"], way["enable_output_clone"]) for way in seen] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert seen[1]["disable_mempool_reuse_in_same_fx"] is True


def test_an_error_of_a_way_keeps_what_it_says(tmp_path, monkeypatch):
    aotair.build(model=DOUBLE, out=tmp_path / "a.aotair", **PARTS)

    def fails(*given, **options):
        raise CaptureError("planted", where="there", expected="this", got="that", fix="so")

    monkeypatch.setattr("aotair.pack.all_on_host", fails)
    with pytest.raises(ProofError) as caught:
        check_written(tmp_path / "a.aotair", Allowed(), "here")
    error = caught.value
    assert (error.where, error.expected, error.got, error.fix) == ("there", "this", "that", "so")
    assert "clone_input=True, enable_output_clone=False: planted" in error.what


def test_an_answer_beyond_the_tolerance_names_entry_and_bucket(tmp_path, monkeypatch):
    aotair.build(model=DOUBLE, out=tmp_path / "a.aotair", **PARTS)
    results = [Comparison("forward", "n=2", 0.0, True), Comparison("forward", "n=4", 0.25, False)]
    monkeypatch.setattr("aotair.pack.replay_golden", lambda _: results)
    with pytest.raises(ProofError, match="answers differently with clone_input=True") as caught:
        check_written(tmp_path / "a.aotair", Allowed(), "here")
    assert (caught.value.where, caught.value.got) == ("here: forward, bucket n=4", "an error of 0.25")
