"""Models, passes and builds that lie in one file, in a folder of their own, or are imported when they are called."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from cases import ROOT
from click.testing import CliRunner
from marks import long

import aotair
from aotair.cli import main
from aotair.errors import ModelError
from aotair.recipe.examples import copy_example
from aotair.recipe.imports import import_callable
from aotair.recipe.read import read_recipe
from aotair_runtime.errors import AotairError

LATE = """
import torch

class Late(torch.nn.Module):
    def forward(self, x):
        import beside
        return beside.double(x)

def make(scale=1):
    return Late()

def fails():
    raise ValueError("no such file")

def nothing(kind):
    return None
"""

ALONE = """
import torch, aotair

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x + 1)

def make():
    return Model()

def my_pass(gm, example_inputs, config):
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.relu.default:
            node.target = torch.ops.aten.neg.default

recipe = {{
    "name": "alone",
    "model": {{"factory": {factory!r}}},
    "inputs": {{"x": {{"shape": [2], "dtype": "float32"}}}},
    "config": {{"post_grad_custom_pre_pass": {own!r}}},
}}
try:
    aotair.build(recipe, {out!r})
except aotair.AotairError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "beside.py").write_text("def double(x):\n    return x * 2\n")
    recipe = {
        "name": "late",
        "model": {"factory": "late.py:make"},
        "inputs": {"x": {"shape": [2], "dtype": "float32"}},
    }
    (tmp_path / "late.yaml").write_text(yaml.safe_dump(recipe))
    return tmp_path


def test_what_a_model_imports_when_it_is_called_is_found_beside_the_recipe(folder: Path):
    before = list(sys.path)
    path = aotair.build(folder / "late.yaml", folder / "late.aotair")
    assert aotair.load(path)(torch.ones(2)).tolist() == [2, 2]
    assert sys.path == before


@pytest.mark.parametrize("by_name", [long(False), True])
def test_a_file_that_builds_itself_does_so_once(tmp_path: Path, by_name: bool):
    """The layout of TorchAir's documents: a model, a pass and the call that compiles it in one script."""
    module, out = ("alone" if by_name else str(tmp_path / "alone.py")), str(tmp_path / "alone.aotair")
    text = ALONE.format(factory=f"{module}:make", own=f"{module}:my_pass", out=out)
    (tmp_path / "alone.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "alone.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert "ProofError" in done.stdout and not done.stderr, done.stderr[-2000:]  # its pass, and no other, changed it


def test_a_file_that_calls_for_itself_meanwhile_gets_what_there_is_of_it(tmp_path: Path):
    file = tmp_path / "again.py"
    file.write_text(
        "from pathlib import Path\nfrom aotair.recipe.imports import import_callable\n"
        "def make(): return 1\n"
        f"found = import_callable('{file}:make', Path('.'), 'here', 'a field')\n"
    )
    made = import_callable(f"{file}:make", tmp_path, "here", "a field")
    assert made.__globals__["found"] is made


def test_set_makes_what_is_not_there(folder: Path):
    text = (folder / "late.yaml").read_text()
    for kwargs in ("", "  kwargs:\n", "  kwargs: {}\n"):
        (folder / "late.yaml").write_text(text.replace("inputs:", "inputs:").replace("model:\n", f"model:\n{kwargs}"))
        assert read_recipe(folder / "late.yaml", ["model.kwargs.scale=3"]).model.kwargs == {"scale": 3}


# ---- aotair init ----------------------------------------------------------------------------------------------------


def test_init_takes_arguments_for_the_factory():
    kwargs = ["--kwarg", "in_features=3", "--kwarg", "out_features=2"]
    done = CliRunner().invoke(main, ["init", "torch.nn:Linear", *kwargs])
    recipe = yaml.safe_load(done.output)
    assert recipe["model"] == {"factory": "torch.nn:Linear", "kwargs": {"in_features": 3, "out_features": 2}}


def test_init_says_what_is_wrong_with_a_factory(folder: Path, monkeypatch):
    monkeypatch.chdir(folder)
    for arguments, says in (
        (["late.py:fails"], "late.py:fails failed (at late.py:"),
        (["late.py:nothing", "--kwarg", "kind=1"], "returned no model"),
        (["late.py:nothing"], "--kwarg NAME=VALUE"),
        (["late.py:make", "--kwarg", "scale"], "--kwarg: no argument"),
        (["late.py:make", "--kwarg", "scale={"], "--kwarg scale: not YAML"),
    ):
        done = CliRunner().invoke(main, ["init", *arguments])
        assert done.exit_code == 1 and says in done.output and "Traceback" not in done.output
    assert CliRunner().invoke(main, ["init"]).exit_code == 2


def test_examples_are_copied_and_can_be_built(tmp_path: Path):
    files = list(copy_example("llama", tmp_path / "mine"))
    assert [file.name for file in files] == ["llama.yaml", "language.py"]
    assert "factory: language.py:llama" in files[0].read_text()
    assert read_recipe(files[0]).folder == tmp_path / "mine"
    with pytest.raises(AotairError, match="would be overwritten"):
        list(copy_example("qwen3", tmp_path / "mine"))
    with pytest.raises(AotairError, match="deepseek_v3"):
        list(copy_example("nothing", tmp_path))
    done = CliRunner().invoke(main, ["init", "--example", "ascend_decode", "-o", str(tmp_path / "other")])
    assert done.exit_code == 0
    aotair.build(tmp_path / "other" / "ascend_decode.yaml", tmp_path / "a.aotair")


def test_the_wheel_holds_the_examples(tmp_path: Path):
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*pip, str(ROOT)], check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("aotair-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"aotair/recipes/minilm.yaml", "aotair/recipes/language.py", "aotair/__main__.py"} <= set(names)
    assert {f"aotair/report/{name}.js" for name in ("graph", "layout", "search")} <= set(names)
    assert "aotair_runtime/call/entry.py" in names and not [
        name for name in names if name.startswith(("tests", "recipes"))
    ]


def test_python_m_aotair_is_the_command(tmp_path: Path):
    done = subprocess.run([sys.executable, "-m", "aotair", "--help"], capture_output=True, text=True, check=True)
    assert "Usage: aotair" in done.stdout
    assert dir(aotair) == sorted(aotair.__all__)


def test_a_factory_that_cannot_be_called_is_said():
    with pytest.raises(ModelError, match="cannot be called"):
        import_callable("math:pi", Path.cwd(), "here", "a field")
