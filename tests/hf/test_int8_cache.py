"""Keys and values in int8: what a cache holds, how far logits move, on which devices, and what is refused."""

from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
import transformers as tf
from marks import long
from torch import nn
from transformers.cache_utils import DynamicCache, DynamicLayer

import aotair
from aotair.builder import build_with_summary
from aotair.errors import ModelError, RecipeError
from aotair.hf import int8_rows
from aotair.hf.caches import cache_argument
from aotair.hf.language import PagedLanguageModel
from aotair.model.calibration import Calibration
from aotair.model.quantized_cache import texts_of
from aotair.summary import Listener, Summary
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.text import summary
from benchmarks.decoder_models import DECODERS

STATIC: dict[str, Any] = {"slots": 4, "length": 64}
PAGED: dict[str, Any] = {"cache": "paged", "blocks": 16, "block": 16, "length": 64}


def recipe(folder: Path, kwargs: dict[str, Any], device: str = "cpu", dtype: str = "float32") -> dict[str, Any]:
    return {
        "name": "small-cache",
        "model": {"pretrained": str(folder), "dtype": dtype, "kwargs": kwargs},
        "entry_points": {
            "prefill": {"buckets": {"batch": [1], "seq": [16]}},
            "decode": {"buckets": {"batch": [2]}},
        },
        "quantize": {"kv_cache": "int8"},
        "target": {"device": device},
    }


def built(folder: Path, name: str, kwargs: dict[str, Any], **more: Any) -> Summary:
    model = checkpoints.seeded(checkpoints.decoder(name))
    checkpoints.write_checkpoint(folder / "w", model, tokenizer=False)
    return build_with_summary(recipe(folder / "w", kwargs, **more), folder / "x.aotair", Listener())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_a_head_is_off_by_half_a_unit_at_most(kind: torch.dtype):
    rows = torch.randn(5, 3, 8, dtype=torch.float32).mul_(torch.logspace(-3, 3, 15).view(5, 3, 1)).to(kind)
    numbers, scales = int8_rows.rounded(rows)
    assert (numbers.dtype, scales.dtype, tuple(scales.shape)) == (torch.int8, torch.float32, (5, 3))
    away = (int8_rows.widened(numbers, scales, torch.float64) - rows.double()).abs()
    assert (away <= 0.501 * scales[..., None]).all()
    assert torch.equal(numbers.abs().amax(-1), torch.full((5, 3), 127, dtype=torch.int8))


def test_nothing_and_no_number_stay_what_they_are():
    rows = torch.zeros(3, 2, 4)
    rows[1, 0, 2], rows[2, 1, 0] = torch.nan, torch.inf
    back = int8_rows.widened(*int8_rows.rounded(rows), torch.float32)
    assert torch.equal(back[0], rows[0]) and torch.equal(back[1, 1], rows[1, 1])
    assert back[1, 0].isnan().all() and not back[2, 1].isfinite().any()


class Rounded(DynamicLayer):
    """transformers' own cache, of which later calls get back what was rounded."""

    def update(self, key_states, value_states, *args, **kwargs):
        fresh = not self.is_initialized
        kept = super().update(rounded(key_states), rounded(value_states), *args, **kwargs)
        return (key_states, value_states) if fresh else kept


def rounded(x: torch.Tensor) -> torch.Tensor:
    unit = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)  # the padding token is all zeros
    return (x / unit).round() * unit


def original_steps(folder: Path, ids: torch.Tensor, prompt: int) -> torch.Tensor:
    """The logits of transformers' model after a prompt, token by token, over a rounded cache, (tokens, vocabulary)."""
    model = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    cache = DynamicCache(config=model.config)
    cache.layers = [Rounded() for _ in cache.layers]
    given: dict[str, Any] = {cache_argument(model): cache, "use_cache": True}
    with torch.no_grad():
        model(input_ids=ids[:, :prompt], **given)
        return torch.cat(
            [model(input_ids=ids[:, at : at + 1], **given).logits[:, 0] for at in range(prompt, ids.shape[1])]
        )


@pytest.mark.parametrize("kwargs", [STATIC, long(PAGED)], ids=["static", "paged"])
def test_a_cache_of_a_third_answers_as_a_rounded_one_of_transformers(kwargs: dict[str, Any], tmp_path: Path):
    summary = built(tmp_path, "llama", kwargs)
    with aotair.load(tmp_path / "x.aotair", enable_output_clone=True) as served:
        kinds = {name: tensor.dtype for name, tensor in served.state.items()}
        assert {kinds["keys0"], kinds["values1"]} == {torch.int8} and kinds["keys0_scales"] == torch.float32
        where = {"slots": torch.tensor([2])} if kwargs is STATIC else {"block_table": torch.tensor([[7, 2, 0, 9]])}
        ids = torch.randint(256, (1, 24), generator=torch.Generator().manual_seed(3))
        served.prefill(input_ids=ids[:, :16], attention_mask=torch.ones(1, 16, dtype=torch.int64), **where)
        steps = [served.decode(input_ids=ids[:, at], positions=torch.tensor([at]), **where) for at in range(16, 24)]
    want = original_steps(tmp_path / "w", ids, 16)
    torch.testing.assert_close(torch.cat(steps), want, atol=2e-4 * float(want.abs().max()), rtol=0)
    made = summary.quantised
    assert made is not None and made.kinds() == [("layers' keys and values in int8", 2)]
    assert set(made.layers) == {f"{name}{layer}" for name in ("keys", "values") for layer in range(2)}
    assert all(0.001 < moved < 0.01 for moved in made.layers.values()) and 0 < made.relative_error < 0.02
    assert made.source.startswith("random inputs")


@pytest.mark.parametrize("name", [long("deepseek_v3"), "lfm2"])
def test_latents_and_layers_with_states(name: str, tmp_path: Path):
    folder = tmp_path
    model = checkpoints.seeded(checkpoints.decoder(name))
    checkpoints.write_checkpoint(folder / "w", model, tokenizer=False)
    asked = recipe(folder / "w", STATIC)
    if name != "lfm2":  # its states cannot be entered where a call pads
        asked["entry_points"]["verify"] = {"buckets": {"batch": [1], "seq": [4]}}
    made = build_with_summary(asked, folder / "x.aotair", Listener()).quantised
    assert made is not None and made.caches and made.relative_error < 0.03
    with aotair.load(folder / "x.aotair") as served:
        assert f" {2 * made.caches} int8" in summary(served.program)
        kept = {n: t.dtype for n, t in served.state.items() if n.startswith(("keys", "values"))}
    assert len(kept) == 4 * made.caches
    assert {kind for name, kind in kept.items() if not name.endswith("scales")} == {torch.int8}


@pytest.mark.parametrize("kwargs", [long(STATIC), {**PAGED, "slots": 4}], ids=["static", "paged"])
def test_npus_gather_and_widen_what_lies_in_blocks(kwargs: dict[str, Any], tmp_path: Path):
    built(tmp_path, "llama", kwargs, device="npu", dtype="float16")
    program = read_program(tmp_path / "x.aotair")
    assert "lengths" not in {spec.name for entry in program.entry_points for spec in entry.inputs}
    assert "npu::npu_fused_infer_attention_score" in {op.name.partition(".")[0] for op in program.ops}
    with aotair.load(tmp_path / "x.aotair", device="cpu") as served:
        assert {served.state["keys0"].dtype, served.state["values1"].dtype} == {torch.int8}


def test_lengths_of_the_host_are_no_reason_to_read_numbers_without_their_scales():
    made = PagedLanguageModel(checkpoints.seeded(checkpoints.llama()).eval(), 8, 16, 64).eval()
    made.quantize_cache()
    ids, table = torch.arange(1, 9)[None], torch.tensor([[3, 1, 8, 8]])
    with torch.no_grad():
        made.prefill(ids, torch.ones_like(ids), table)
        plain = made.decode(ids[:, 0], torch.tensor([8]), table)
        assert torch.equal(made.decode(ids[:, 0], torch.tensor([8]), table, [9]), plain) and plain.isfinite().all()


def test_texts_are_prompts_that_are_long_enough():
    ids, mask = torch.arange(24).view(2, 12), torch.ones(2, 12, dtype=torch.int64)
    mask[1, 7:] = 0
    entry: Any = None
    calls = ({"input_ids": ids, "attention_mask": mask}, {"input_ids": ids[:, 0], "positions": ids[:, 0]})
    (text,) = texts_of(Calibration(((entry, calls),), "here"))
    assert torch.equal(text, ids[0])


@pytest.mark.long
def test_ranks_share_out_numbers_and_scales(tmp_path: Path):
    checkpoints.write_checkpoint(tmp_path / "w", checkpoints.seeded(checkpoints.llama()), tokenizer=False)
    path = aotair.build(recipe(tmp_path / "w", STATIC) | {"mesh": {"tp": 2}}, tmp_path / "x.aotair")
    cut = {one.name: one.shape for one in read_program(path).constants if one.name.startswith("keys0")}
    assert {shape[-1] for shape in cut.values()} == {16, 1}


def test_a_model_without_a_cache_of_ours_is_refused(tmp_path: Path):
    with pytest.raises(ModelError, match=r"kv_cache: the model keeps no cache(.|\n)*text-generation"):
        aotair.build(
            model=nn.Linear(4, 4),
            inputs={"input": torch.zeros(2, 4)},
            quantize={"kv_cache": "int8"},
            out=tmp_path / "x.aotair",
        )
    assert not list(tmp_path.iterdir())


def test_a_model_without_attention_has_nothing_to_round(tmp_path: Path):
    checkpoints.write_checkpoint(tmp_path / "w", checkpoints.seeded(DECODERS["mamba"]()), tokenizer=False)
    with pytest.raises(ModelError, match="no layer of the model keeps keys and values"):
        aotair.build(recipe(tmp_path / "w", STATIC), tmp_path / "x.aotair")


def test_another_dtype_is_no_choice(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"quantize(.|\n)*for kv_cache no scheme of float8(.|\n)*int8"):
        aotair.build(recipe(tmp_path, STATIC) | {"quantize": {"kv_cache": "fp8"}}, tmp_path / "x.aotair")
