"""Checkpoints whose names are the model's with something before them, or others that the caller translates."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

import aotair
from aotair_runtime.artifact.checkpoint import open_checkpoint
from aotair_runtime.artifact.renamed import Naming, renamed
from aotair_runtime.errors import WeightsError

INPUTS = {"input": {"shape": ["batch", 4], "dtype": "float32", "pad": "any"}}


class Wrapped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))

    def forward(self, input):
        return self.model(input)


def weights(prefix: str, seed: int = 5) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    state = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)).state_dict()
    return {prefix + name: tensor for name, tensor in state.items()}


def answer(state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    (a, b, c, d) = state.values()
    return torch.nn.functional.linear(torch.nn.functional.linear(x, a, b), c, d)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("names") / "wrapped"
    return aotair.build(out=out, model=Wrapped(), name="wrapped", inputs=INPUTS, buckets={"batch": [2]})


@pytest.mark.parametrize("prefix", ["", "model.", "outer.model.", "a.b.c.model."])
def test_what_stands_before_all_names_is_found(artifact: Path, tmp_path: Path, prefix: str):
    state = weights(prefix)
    safetensors.torch.save_file(state, tmp_path / "it.safetensors")
    x = torch.randn(2, 4)
    with aotair.load(artifact, enable_output_clone=True) as served:
        served.load_weights(tmp_path / "it.safetensors")
        torch.testing.assert_close(served(x), answer(state, x))


def test_names_are_translated_as_the_caller_says(artifact: Path, tmp_path: Path):
    state = weights("")
    other = {f"lin{name[0]}/{name[2:]}": tensor for name, tensor in state.items()}
    safetensors.torch.save_file(other, tmp_path / "it.safetensors")
    x = torch.randn(2, 4)
    with aotair.load(artifact, enable_output_clone=True) as served:
        with pytest.raises(WeightsError, match="names do not match"):
            served.load_weights(tmp_path / "it.safetensors")
        served.load_weights(tmp_path / "it.safetensors", prefix="model.", rename={r"lin(\d)/": r"\1."})
        torch.testing.assert_close(served(x), answer(state, x))
        served.load_weights(tmp_path / "it.safetensors", rename={r"lin(\d)/": r"\1."})  # what all lack is found
        torch.testing.assert_close(served(x), answer(state, x))


def test_a_recipe_translates_too(tmp_path: Path):
    state = weights("")
    other = {f"lin{name[0]}/{name[2:]}": tensor for name, tensor in state.items()}
    safetensors.torch.save_file(other, tmp_path / "it.safetensors")
    model = {"weights": {"path": str(tmp_path / "it.safetensors"), "prefix": "model.", "rename": {r"lin(\d)/": r"\1."}}}
    (tmp_path / "made.py").write_text(
        "import torch\n\n\nclass Wrapped(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))\n\n"
        "    def forward(self, input):\n        return self.model(input)\n"
    )
    recipe = {"name": "w", "model": {"factory": f"{tmp_path}/made.py:Wrapped", **model}, "inputs": INPUTS}
    path = aotair.build({**recipe, "buckets": {"batch": [2]}}, tmp_path / "translated")
    x = torch.randn(2, 4)
    with aotair.load(path) as served:
        torch.testing.assert_close(served(x), answer(state, x))


def test_two_tensors_never_become_one(artifact: Path, tmp_path: Path):
    safetensors.torch.save_file(weights(""), tmp_path / "it.safetensors")
    with aotair.load(artifact) as served, pytest.raises(WeightsError, match="get one name"):
        served.load_weights(tmp_path / "it.safetensors", rename={r"\d": "0"})


def test_a_pattern_that_is_none_is_an_error_with_its_text(artifact: Path, tmp_path: Path):
    safetensors.torch.save_file(weights(""), tmp_path / "it.safetensors")
    with aotair.load(artifact) as served, pytest.raises(WeightsError, match=r"rename: '\('"):
        served.load_weights(tmp_path / "it.safetensors", rename={"(": ""})


def test_where_two_prefixes_fit_equally_none_is_taken(tmp_path: Path):
    safetensors.torch.save_file({"w": torch.ones(1)}, tmp_path / "it.safetensors")
    found = open_checkpoint(tmp_path / "it.safetensors")
    assert set(renamed(found, {"a.w", "b.w"}, Naming()).tensors) == {"w"}
    assert set(renamed(found, {"a.w", "b.x"}, Naming()).tensors) == {"a.w"}


def test_a_name_that_is_wanted_as_it_is_keeps_all_as_they_are(tmp_path: Path):
    safetensors.torch.save_file({"w": torch.ones(1), "x": torch.ones(1)}, tmp_path / "it.safetensors")
    found = open_checkpoint(tmp_path / "it.safetensors")
    assert set(renamed(found, {"w", "a.x"}, Naming()).tensors) == {"w", "x"}
