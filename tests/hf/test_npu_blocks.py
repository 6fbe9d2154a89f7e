"""Decoding for NPUs over a paged cache: attention reads the blocks where they lie, by lengths that the host knows."""

from pathlib import Path
from typing import Any

import blocks
import checkpoints
import pytest
import torch
import transformers as tf
from marks import long

import aotair
from aotair.chat.generate import Generator
from aotair.chat.sampling import Sampler, Sampling
from aotair.recipe.job import job_of
from aotair.recipe.read import completed, parse_recipe
from aotair_runtime.artifact.open import read_program

ATTENTION = "npu::npu_fused_infer_attention_score"


def written(folder: Path, config: tf.PretrainedConfig) -> torch.nn.Module:
    model = checkpoints.seeded(config).to(torch.float16)
    checkpoints.write_checkpoint(folder, model)
    return model


def sliding() -> tf.PretrainedConfig:
    return tf.MistralConfig(**checkpoints.llama().to_diff_dict() | {"sliding_window": 12, "model_type": "mistral"})


def over_blocks(served: aotair.Model, count: int) -> list[list[int]]:
    """The likeliest tokens after each prompt, whose blocks lie apart; padded where `served` has no bucket for two."""
    table = torch.tensor([[3, 1, 16, 16], [0, 2, 16, 16]]).to(served.device)
    ids, mask = (torch.zeros(2, 9, dtype=torch.int64) for _ in range(2))
    for row, prompt in enumerate(blocks.PROMPTS):
        ids[row, : len(prompt)], mask[row, : len(prompt)] = torch.tensor(prompt), 1
    tokens = served.prefill(ids.to(served.device), mask.to(served.device), table).argmax(-1)
    lengths, found = [len(prompt) for prompt in blocks.PROMPTS], [tokens]
    for _ in range(count - 1):
        positions = torch.tensor(lengths).to(served.device)
        lengths = [length + 1 for length in lengths]
        tokens = served.decode(tokens, positions, table, lengths).argmax(-1)
        found.append(tokens)
    return torch.stack(found, 1).tolist()


@pytest.mark.parametrize("config", [checkpoints.llama, long(sliding)])
def test_tokens_over_blocks_that_lie_apart(config: Any, tmp_path: Path):
    model = written(tmp_path / "w", config())
    path = aotair.build(blocks.recipe(tmp_path / "w"), tmp_path / "x.aotair")
    with aotair.load(path, device="cpu", enable_output_clone=True) as served:
        assert [spec.name for spec in served.decode.spec.inputs][-1] == "lengths"
        assert over_blocks(served, 20) == [checkpoints.generated(model, prompt, 20) for prompt in blocks.PROMPTS]
        for bucket in served.decode.spec.buckets:
            ops = [served.program.ops[served.program.instructions[number].op].name for number in bucket.code]
            assert sum(op.startswith(ATTENTION) for op in ops) == model.config.num_hidden_layers
        generator = Generator(served)
        alone = list(generator.tokens(blocks.PROMPTS[1], Sampler(Sampling()), frozenset(), 8))
        assert alone == checkpoints.generated(model, blocks.PROMPTS[1], 8)


@pytest.mark.long
def test_latents_are_read_in_their_blocks(tmp_path: Path):
    model, asked = written(tmp_path / "w", blocks.latent()), blocks.recipe(tmp_path / "w")
    for entry in asked["entry_points"].values():
        entry["buckets"]["batch"] = [2]
    path = aotair.build(asked, tmp_path / "x.aotair")
    with aotair.load(path, device="cpu", enable_output_clone=True) as served:
        assert over_blocks(served, 20) == [checkpoints.generated(model, prompt, 20) for prompt in blocks.PROMPTS]
        for bucket in served.decode.spec.buckets:
            calls = [served.program.instructions[number] for number in bucket.code]
            names = [served.program.ops[call.op].name for call in calls]
            assert sum(name.startswith(ATTENTION) for name in names) == model.config.num_hidden_layers
            assert not any("softmax" in name for name in names)


@pytest.mark.long
def test_one_op_makes_queries_and_rows_of_latent_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = blocks.prologs(monkeypatch)
    checkpoints.write_checkpoint(tmp_path / "w", checkpoints.seeded(config).to(torch.bfloat16))
    found = {}
    for name, nz in (("at once", True), ("apart", False)):
        path = aotair.build(blocks.decoding(tmp_path / "w", nz), tmp_path / f"{name}.aotair")
        calls = lifted(path)
        assert calls.get("npu::npu_mla_prolog_v3", 0) == (config.num_hidden_layers if nz else 0)
        assert "npu::npu_mla_prolog_v3_functional" not in calls and calls[ATTENTION + ".out"]
        for rows in ([0, 1], [2, 1]):  # what pads a call comes last, or first
            with aotair.load(path, device="cpu", enable_output_clone=True) as served:
                found[name, rows[0]] = blocks.tokens_by_rows(served, rows)
    for rows in (0, 2):
        (logits, states), (want, rows_apart) = found["at once", rows], found["apart", rows]
        largest = max(float(one.abs().max()) for one in want)
        for one, other in zip(logits, want, strict=True):
            assert (one - other).abs().max() < 0.05 * largest
        for one, other in zip(states, rows_apart, strict=True):
            torch.testing.assert_close(one.float(), other.float(), atol=0.1, rtol=0.05)
            assert not one[16 * 16 :].any(), "what pads a call writes nothing"
    assert all(map(torch.equal, found["at once", 0][1], found["at once", 2][1]))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"hidden_size": 96}, "hidden_size is 96, not 64"),
        ({"q_lora_rank": None}, "q_lora_rank is None, not 32"),
        ({"attention_bias": True}, "its products have biases"),
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, "it has 3 heads"),
        ({"rope_interleave": False}, "it rotates halves"),
    ],
)
def test_layers_that_its_kernel_does_not_take(
    changed: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
):
    config = blocks.prologs(monkeypatch, **changed)
    checkpoints.write_checkpoint(tmp_path / "w", checkpoints.seeded(config).to(torch.bfloat16))
    with caplog.at_level("INFO", logger="aotair"):
        source = completed(parse_recipe(blocks.decoding(tmp_path / "w", True)))
        job_of(source).factory(**source.model.kwargs)
    assert f"npu_mla_prolog_v3 is not called by layer 0: {why}" in caplog.text


@pytest.mark.parametrize(
    "changed",
    [{"dtype": "float32"}, {"block": 8}, {"cache": "static"}, {"device": "cpu"}],
    ids=["in float32", "of 8 tokens", "not paged", "on the CPU"],
)
def test_what_the_kernel_does_not_take_needs_no_lengths(changed: dict[str, Any], checkpoint: Path):
    found = completed(parse_recipe(blocks.recipe(checkpoint, **changed)))
    assert "lengths" not in found.entry_points["decode"].inputs


def lifted(path: Path) -> dict[str, int]:
    """How many calls of each npu op the last bucket makes."""
    program = read_program(path)
    names = [program.ops[program.instructions[n].op].name for n in program.entry_points[-1].buckets[-1].code]
    return {name: names.count(name) for name in names if name.startswith("npu::")}


@pytest.mark.parametrize(
    "name, mesh", [("llama", {"tp": 2}), long("qwen3_moe", {"tp": 2}), long("qwen3_moe", {"ep": 2})]
)
def test_a_model_that_ranks_share_out_is_lifted_as_the_whole_one_is(name: str, mesh: dict[str, int], tmp_path: Path):
    written(tmp_path / "w", checkpoints.decoder(name))
    plain = blocks.recipe(tmp_path / "w", "float32", cache="static", slots=2)
    del plain["model"]["kwargs"]["block"]
    plain["entry_points"] = {"decode": {"buckets": {"batch": [2]}}}
    whole = lifted(aotair.build(plain, tmp_path / "whole.aotair"))
    shared = lifted(aotair.build(plain | {"mesh": mesh}, tmp_path / "shared.aotair"))
    assert shared == whole and {"npu::npu_rotary_mul", "npu::npu_rms_norm"} <= set(whole)
    assert ("npu::npu_moe_init_routing_v2" in whole) == (name == "qwen3_moe")
