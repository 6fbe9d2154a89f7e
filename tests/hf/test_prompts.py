"""Texts by which a proof and a calibration call the model, through the checkpoint's own tokenizer."""

from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
import transformers as tf

import aotair
from aotair.errors import ModelError, RecipeError
from aotair.hf.prompts import TEXTS
from aotair.model.calibration import calibration_of, watched
from aotair.model.load import load_model
from aotair.model.quantize import quantize
from aotair.prove.prove import Runner
from aotair.recipe.job import Job, job_of
from aotair.recipe.read import parse_recipe

TEXT = "Hello, world"


def recipe(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "name": "prompted",
        "model": {"pretrained": str(folder), "task": "text-generation", "kwargs": {"slots": 2, "length": 64}},
        "entry_points": {"prefill": {"buckets": {"batch": [1], "seq": [4, 8]}}, "decode": {"buckets": {"batch": [2]}}},
        "target": {"device": "cpu"},
    } | more


def job(data: dict[str, Any]) -> Job:
    return job_of(parse_recipe(data))


def calls(data: dict[str, Any]) -> dict[str, list[dict[str, torch.Tensor]]]:
    """By entry point, what its prompts are."""
    return {one.entry: one.prompts(one) for one in job(data).entries if one.prompts is not None}


def ids_of(folder: Path, text: str) -> list[int]:
    return list(tf.AutoTokenizer.from_pretrained(folder)(text)["input_ids"])


def test_a_text_is_its_tokens_as_far_as_a_bucket_goes(checkpoint: Path):
    ids, found = ids_of(checkpoint, TEXT), calls(recipe(checkpoint, verify={"prompts": [TEXT]}))
    (prefill,), (decode,) = found["prefill"], found["decode"]
    assert (
        len(ids) > 8 and prefill["input_ids"].tolist() == [ids[:8]] and prefill["attention_mask"].tolist() == [[1] * 8]
    )
    assert decode["input_ids"].tolist() == ids[-1:] and decode["positions"].tolist() == [len(ids) - 1]
    assert prefill["slots"].tolist() == decode["slots"].tolist() == [0]


@pytest.mark.parametrize("method", ["extend", "verify"])
def test_a_chunk_is_the_last_tokens_of_a_text(method: str, checkpoint: Path):
    entries = {method: {"buckets": {"batch": [1], "seq": [4]}}}
    (call,) = calls(recipe(checkpoint, verify={"prompts": [TEXT]}, entry_points=entries))[method]
    ids = ids_of(checkpoint, TEXT)
    assert call["input_ids"].tolist() == [ids[-4:]] and call["positions"].tolist() == [len(ids) - 4]


def test_over_blocks_of_a_paged_cache(checkpoint: Path):
    data = recipe(checkpoint, verify={"prompts": [TEXT]})
    data["model"]["kwargs"] |= {"cache": "paged", "block": 16}
    assert calls(data)["prefill"][0]["block_table"].tolist() == [[0, 1, 2, 3]]


def test_a_text_beyond_what_an_entry_point_holds_is_no_call_of_it(checkpoint: Path):
    data = recipe(checkpoint, verify={"prompts": ["x" * 65]})
    found = calls(data)
    assert len(found["prefill"]) == 1 and found["decode"] == []  # position 64 of 64 tokens


def test_two_texts_of_ours_where_the_recipe_names_none(checkpoint: Path, tmp_path: Path):
    assert len(calls(recipe(checkpoint))["prefill"]) == len(TEXTS)
    assert calls(recipe(checkpoint, verify={"prompts": []}))["prefill"] == []
    plain = checkpoints.write_checkpoint(tmp_path, checkpoints.seeded(checkpoints.llama()), tokenizer=False)
    assert calls(recipe(plain))["prefill"] == []


@pytest.mark.long
def test_the_proof_runs_them_padded_too(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[list[int]]] = []
    reference = Runner.reference

    def watched(self: Runner, inputs: dict[str, torch.Tensor], *more: Any) -> Any:
        seen.append(inputs["input_ids"].tolist())
        return reference(self, inputs, *more)

    monkeypatch.setattr(Runner, "reference", watched)
    path = aotair.build(recipe(checkpoint, verify={"prompts": ["Hi!"]}), tmp_path / "x.aotair")
    assert seen.count([ids_of(checkpoint, "Hi!")]) == 2  # as it is, and before padding
    assert "verify.prompts, 0" in (path / "report" / "prefill.html").read_text()


def test_calibration_by_prompts(checkpoint: Path):
    asked = recipe(checkpoint, verify={"prompts": [TEXT]}, quantize={"linear": "int8_static", "calibration": "prompts"})
    found = calibration_of(job(asked))
    ((entry, (call,)),) = found.calls
    assert entry.entry == "prefill" and call["input_ids"].tolist() == [ids_of(checkpoint, TEXT)[:8]]
    assert found.source == "1 of verify.prompts"


def test_scales_follow_from_the_prompts(checkpoint: Path):
    asked = recipe(checkpoint, verify={"prompts": [TEXT]}, quantize={"linear": "int8_static", "calibration": "prompts"})
    made, largest = job(asked), []
    model = load_model(made)
    layer = model.get_submodule("model.model.layers.1.mlp.up_proj")
    with watched({"up": layer}, lambda name, given, answer: largest.append(given.args[0].abs().max().item())):
        model.prefill(**made.entries[0].prompts(made.entries[0])[0])
    quantize(model, made)
    scale = model.get_submodule("model.model.layers.1.mlp.up_proj").input_scale
    assert len(largest) == 1 and scale.item() == pytest.approx(largest[0] / 127, rel=1e-6)


def test_prompts_without_a_tokenizer_are_refused(tmp_path: Path):
    plain = checkpoints.write_checkpoint(tmp_path, checkpoints.seeded(checkpoints.llama()), tokenizer=False)
    with pytest.raises(ModelError, match="its tokenizer cannot be read"):
        aotair.build(recipe(plain, verify={"prompts": [TEXT]}), tmp_path / "x.aotair")


def test_prompts_of_a_factory_are_refused(tmp_path: Path):
    data = {
        "name": "x",
        "model": {"factory": "torch.nn:Identity"},
        "inputs": {"input": {"shape": [2], "dtype": "float32"}},
        "verify": {"prompts": ["Hi"]},
    }
    with pytest.raises(RecipeError, match=r"verify\.prompts: only a checkpoint brings a tokenizer"):
        aotair.build(data, tmp_path / "x.aotair")
