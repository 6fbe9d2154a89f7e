"""Several recipes on one command line: one after the other; what cannot be built does not stop the others."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from cases import RECIPES
from click.testing import CliRunner, Result

from aotair.cli import main
from aotair_runtime.artifact.open import read_program

WRONG = {"name": "wrong", "model": {"factory": "nothing:here"}, "inputs": {"x": {"shape": [1], "dtype": "float32"}}}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The recipes of three models in the working directory, of which one cannot be imported."""
    monkeypatch.chdir(tmp_path)
    recipes = {"linear": RECIPES["linear"], "swap": RECIPES["swap"], "wrong": WRONG}
    for name, recipe in recipes.items():
        Path(f"{name}.yaml").write_text(yaml.safe_dump(recipe | {"name": name}))
    return {name: f"{name}.yaml" for name in recipes}


def build(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["build", *arguments], catch_exceptions=False)


def test_each_is_built_into_its_own_name(files: dict[str, str]):
    result = build(files["linear"], files["swap"])
    assert result.exit_code == 0
    assert [line for line in result.stdout.splitlines() if line.endswith(".yaml")] == ["linear.yaml", "swap.yaml"]
    assert "built linear.aotair" in result.stdout and "built swap.aotair" in result.stdout
    assert [read_program(Path(f"{name}.aotair")).name for name in ("linear", "swap")] == ["linear", "swap"]


def test_one_that_cannot_be_built_does_not_stop_the_others(files: dict[str, str]):
    result = build(files["wrong"], files["linear"], "--json")
    assert result.exit_code == 1 and Path("linear.aotair").is_dir() and not Path("wrong.aotair").exists()
    assert result.stderr.startswith("error: wrong.yaml: model.factory: cannot import 'nothing:here'")
    assert {file: made["artifact"] for file, made in json.loads(result.stdout).items()} == {
        "linear.yaml": "linear.aotair"
    }


def test_two_of_one_name_are_refused_before_anything_is_built(files: dict[str, str]):
    Path("again.yaml").write_text(Path("linear.yaml").read_text())
    result = build(files["linear"], "again.yaml")
    assert result.exit_code == 2 and "several recipes would be built into linear.aotair" in result.output
    assert not Path("linear.aotair").exists()


def test_a_recipe_that_cannot_be_read_is_refused_before_anything_is_built(files: dict[str, str]):
    Path("broken.yaml").write_text("name: [")
    result = build(files["linear"], "broken.yaml")
    assert result.exit_code == 1 and "broken.yaml" in result.output and not Path("linear.aotair").exists()


@pytest.mark.parametrize("option", ["-o", "--dump-graph", "--stop-after", "--like"])
def test_what_is_for_one_recipe_is_refused(files: dict[str, str], option: str):
    result = build(files["linear"], files["swap"], option, "1")
    assert result.exit_code == 2 and "for one recipe, and not with --on" in result.output


def test_without_ray_it_says_what_to_install(files: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "aotair.cluster", raising=False)
    result = build(files["linear"], "--on", "ray")
    assert result.exit_code == 2 and "pip install 'aotair[ray]'" in result.output
