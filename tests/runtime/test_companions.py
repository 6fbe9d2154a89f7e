"""Files that travel with an artifact: the bytes that the build wrote or an error, and no path out of the artifact."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import aotair
from aotair.cli import main
from aotair.errors import RecipeError
from aotair_runtime.artifact.companions import companion, companions, is_companion
from aotair_runtime.artifact.open import read_program
from aotair_runtime.errors import AlteredError, AotairError, MalformedError, TruncatedError
from aotair_runtime.format import codec
from aotair_runtime.format.schema import PROGRAM_FILE, File

INPUTS = {"input": {"shape": [1, 4], "dtype": "float32"}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    files = [str(tmp_path / "labels.txt")]
    return aotair.build(out=tmp_path / "a", model=torch.nn.Linear(4, 2), name="a", inputs=INPUTS, files=files)


def test_a_file_of_the_recipe_travels_along(path: Path):
    program = read_program(path)
    assert companion(path, program, "labels.txt").read_text() == "cat\ndog\n"
    shown = CliRunner().invoke(main, ["inspect", str(path)])
    assert "labels.txt (8 bytes)" in shown.output


def test_another_build_gives_the_same_bytes(path: Path, tmp_path: Path):
    files = [str(tmp_path / "labels.txt")]
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    made = [aotair.build(out=tmp_path / n, model=model, name="a", inputs=INPUTS, files=files) for n in ("b", "c")]
    texts = [{f.relative_to(p): f.read_bytes() for f in p.rglob("*") if f.is_file()} for p in made]
    assert texts[0] == texts[1]


def test_a_changed_or_missing_file_is_an_error_for_whoever_reads_it(path: Path):
    program, file = read_program(path), path / "files" / "labels.txt"
    file.write_text("cat\ncow\n")
    with pytest.raises(AlteredError):
        companion(path, program, "labels.txt")
    verified = CliRunner().invoke(main, ["verify", str(path)])
    assert verified.exit_code == 1 and "labels.txt" in verified.output
    file.unlink()
    with pytest.raises(TruncatedError):
        companion(path, program, "labels.txt")
    with aotair.load(path) as model:  # which does not need it
        assert model(torch.zeros(1, 4)).shape == (1, 2)


def test_a_name_that_it_does_not_have(path: Path):
    with pytest.raises(AotairError, match="no such file") as caught:
        companion(path, read_program(path), "../program.msgpack")
    assert caught.value.expected == "labels.txt"


@pytest.mark.parametrize(
    "name",
    ["files/../x", "files/", "files/a/b", "/etc/passwd", "files/.hidden", "files/a\0", "files/a\nb", "other/x",
     "files/a.", "files/" + "x" * 300, "files/\u202etxt", "files\\x", "program.msgpack", "files/con:x"],
)  # fmt: skip
def test_a_hostile_name_is_no_file_of_an_artifact(path: Path, name: str):
    assert not is_companion(name)
    program = read_program(path)
    files = tuple(replace(f, name=name) if f.name.startswith("files/") else f for f in program.files)
    (path / PROGRAM_FILE).write_bytes(codec.dump(replace(program, files=files)))
    with pytest.raises(MalformedError, match="files breaks a rule"):
        read_program(path)


def test_two_files_of_one_name(path: Path):
    program = read_program(path)
    again = File("files/labels.txt", 8, "0" * 64)
    (path / PROGRAM_FILE).write_bytes(codec.dump(replace(program, files=(*program.files, again))))
    with pytest.raises(MalformedError, match="files breaks a rule"):
        read_program(path)


def test_a_file_that_is_not_there_is_refused_before_anything_is_left(tmp_path: Path):
    options = {"model": torch.nn.Linear(4, 2), "name": "a", "inputs": INPUTS}
    with pytest.raises(RecipeError, match=r"files: .* cannot be read"):
        aotair.build(out=tmp_path / "a", files=[str(tmp_path / "nowhere.txt")], **options)
    (tmp_path / ".hidden").write_text("x")
    with pytest.raises(RecipeError, match="no file of that name"):
        aotair.build(out=tmp_path / "a", files=[str(tmp_path / ".hidden")], **options)
    assert not (tmp_path / "a").exists() and not list(tmp_path.glob(".a.*"))


def test_names_of_files(path: Path):
    assert list(companions(read_program(path))) == ["labels.txt"]
    shutil.rmtree(path / "files")
    with pytest.raises(TruncatedError):
        companion(path, read_program(path), "labels.txt")
