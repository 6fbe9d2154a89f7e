"""Checkpoints of language models whose linear layers another tool has quantised, from their directories alone."""

import json
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import quantised_tools as tools
import safetensors.torch
import torch
from quantised_cases import COMPRESSED

import aotair
from aotair.errors import ModelError
from aotair.hf.tasks import make
from aotair.target.target import Target
from examples.generate import generate

PROMPTS = [[5, 9, 200], [17, 3, 3, 8, 250, 99, 1, 4, 31]]


def quantised(folder: Path, scheme: str = "w4a16", seed: int = 0, **config: Any) -> torch.nn.Module:
    """A Llama's checkpoint as compressed-tensors writes it into the hub's layout, and its own model of it."""
    model = checkpoints.seeded(checkpoints.llama(**config), seed=seed).requires_grad_(False)
    checkpoints.write_checkpoint(folder, model)
    said = json.loads((folder / "config.json").read_text())
    tool = tools.compress(model, folder, {"group_0": {"targets": ["Linear"], **COMPRESSED[scheme]}}, ["lm_head"])
    changed_config(folder, **said)
    return tool


def changed_config(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def recipe(folder: Path) -> dict[str, Any]:
    return {
        "name": "quantised",
        "model": {"pretrained": str(folder), "task": "text-generation", "kwargs": {"slots": 2, "length": 64}},
        "entry_points": {"prefill": {"buckets": {"batch": [2], "seq": [16]}}, "decode": {"buckets": {"batch": [2]}}},
        "target": {"device": "cpu"},
    }


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, torch.nn.Module]:
    """The checkpoint, its artifact, and the tool's own model."""
    folder = tmp_path_factory.mktemp("first")
    tool = quantised(folder / "w")
    return folder / "w", aotair.build(recipe(folder / "w"), folder / "x.aotair"), tool


def test_the_tokens_are_those_of_the_tools_own_model(first: tuple[Path, Path, torch.nn.Module]):
    _, artifact, tool = first
    with aotair.load(artifact, enable_output_clone=True) as served:
        assert generate(served, PROMPTS, 20) == [checkpoints.generated(tool, prompt, 20) for prompt in PROMPTS]


def test_the_next_checkpoint_is_loaded_from_its_directory(first: tuple[Path, Path, torch.nn.Module], tmp_path: Path):
    _, artifact, _ = first
    tool = quantised(tmp_path / "next", seed=7)
    with aotair.load(artifact, enable_output_clone=True) as served:
        before = generate(served, PROMPTS, 20)
        served.load_weights(tmp_path / "next")
        after = generate(served, PROMPTS, 20)
    assert after != before and after == [checkpoints.generated(tool, prompt, 20) for prompt in PROMPTS]


@pytest.mark.parametrize("scheme", ["w4a16, zero points", "w8a16, zero points"])
def test_logits_of_quantised_weights(scheme: str, tmp_path: Path):
    got, want = both(tmp_path, scheme)
    assert torch.allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", ["w8a8", "float8"])
def test_logits_of_quantised_activations(scheme: str, tmp_path: Path):
    """A last bit of a float may move an activation by a step of its scale."""
    got, want = both(tmp_path, scheme)
    assert (got - want).norm() < 0.05 * want.norm()


def both(folder: Path, scheme: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Our logits after a prompt, and the tool's."""
    tool, ids = quantised(folder, scheme), torch.tensor([PROMPTS[1]])
    made = make(str(folder), "text-generation", None, Target("cpu"), folder, "here", slots=1, length=32)
    return made.prefill(ids, torch.ones_like(ids), torch.tensor([0])), tool(ids).logits[:, -1]


def test_tied_embeddings_stay_one_tensor(tmp_path: Path):
    tool = quantised(tmp_path, tie_word_embeddings=True)
    made = make(str(tmp_path), "text-generation", None, Target("cpu"), tmp_path, "here", slots=1, length=32)
    inner = made.model
    assert inner.get_output_embeddings().weight is inner.get_input_embeddings().weight
    assert torch.equal(inner.get_input_embeddings().weight, tool.get_input_embeddings().weight)


def test_a_method_that_is_not_known(tmp_path: Path):
    quantised(tmp_path)
    changed_config(tmp_path, quantization_config={"quant_method": "martian"})
    with pytest.raises(ModelError, match=r"model\.pretrained: .*quant_method") as caught:
        aotair.build(recipe(tmp_path), tmp_path / "x.aotair")
    assert "martian" in str(caught.value) and not (tmp_path / "x.aotair").exists()


def test_a_layer_whose_scales_are_missing(tmp_path: Path):
    quantised(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight_scale"
    stored = safetensors.torch.load_file(tmp_path / "model.safetensors")
    del stored[name]
    safetensors.torch.save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.pretrained: .*layers\.1\.mlp\.up_proj.*weight_scale"):
        aotair.build(recipe(tmp_path), tmp_path / "x.aotair")
