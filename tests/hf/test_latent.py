"""Latent attention over a cache: absorbed where few tokens are asked, with the tokens of transformers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import checkpoints
import pytest
import torch
import transformers as tf

import aotair
from aotair.hf import latent
from aotair.hf.caches import Call, Rows
from aotair.hf.language import LanguageModel
from aotair.hf.latent import Expansions, attend_gathered
from aotair_runtime.format.schema import EntryPoint
from examples.generate import generate

PROMPTS = [[5, 9, 200], [17, 3, 3, 8, 250, 99, 1, 4, 31]]
OP = "air::latent_attention.out"


def small(name: str = "DeepseekV3", seed: int = 0, **changes: Any) -> Any:
    """Two layers of a model with latent attention and without experts, seeded."""
    sizes = {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
        "intermediate_size": 48, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12,
        "v_head_dim": 10, "first_k_dense_replace": 2, "max_position_embeddings": 64, "pad_token_id": 0,
    }  # fmt: skip
    return checkpoints.seeded(getattr(tf, f"{name}Config")(**(sizes | changes)), seed)


def recipe(folder: Path, entries: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    return {
        "name": "latent",
        "model": {"pretrained": str(folder), "kwargs": {"length": 64, "slots": 4, **kwargs}},
        "entry_points": entries,
    }


def names(served: aotair.Model, entry: EntryPoint) -> list[str]:
    program = served.program
    return [program.ops[program.instructions[number].op].name for number in entry.buckets[-1].code]


SEVERAL = {"buckets": {"batch": [2], "seq": [4]}}
ALL = {
    "prefill": {"buckets": {"batch": [2], "seq": [16]}},
    "decode": {"buckets": {"batch": [2]}},
    "extend": SEVERAL,
    "verify": SEVERAL,
}


@pytest.mark.parametrize("dtype, error", [(torch.bfloat16, 2.5e-3), (torch.float16, 5e-4)])
def test_gathered_latents_round_no_scores(dtype: torch.dtype, error: float):
    """The scores here are about 40, and of half precision would be off by a tenth of that; or too large, in float16."""
    torch.manual_seed(0)
    query, rope = (12 * torch.randn(1, 4, 2, 128)).to(dtype), (12 * torch.randn(1, 4, 2, 64)).to(dtype)
    rows, ropes, mask = torch.randn(64, 128).to(dtype), torch.randn(64, 64).to(dtype), torch.ones(1, 1, 2, 64).bool()
    scores = query.double() @ rows.double().t() + rope.double() @ ropes.double().t()
    want = (scores * 192**-0.5).softmax(-1) @ rows.double()
    layer: Any = SimpleNamespace(given=(rows[None, None], ropes[None, None]))
    got = attend_gathered(query, rope, mask, layer, 192**-0.5).double()
    assert (got - want).norm() < error * want.norm()
    large = attend_gathered(query * 40, rope, mask, layer, 192**-0.5)
    assert large.isfinite().all() and (query * 40).isfinite().all()


@pytest.mark.long
def test_few_tokens_meet_latents_and_many_are_expanded(tmp_path: Path):
    model = small(vocab_size=256)
    checkpoints.write_checkpoint(tmp_path / "w", model, tokenizer=False)
    path = aotair.build(recipe(tmp_path / "w", ALL), tmp_path / "x.aotair")
    with aotair.load(path, enable_output_clone=True) as served:
        layers = model.config.num_hidden_layers
        counts = {entry.name: names(served, entry).count(OP) for entry in served.program.entry_points}
        assert counts == {"prefill": 0, "decode": layers, "extend": 0, "verify": layers}
        # Nothing but the checkpoint's own matrix is stored: both halves are read where they lie in it.
        stored = [one for one in served.program.constants if "kv_b_proj" in one.name]
        assert [one.name.endswith("kv_b_proj.weight") for one in stored] == [True] * layers
        assert generate(served, PROMPTS, 12) == [checkpoints.generated(model, prompt, 12) for prompt in PROMPTS]
        places = [tensor.data_ptr() for tensor in served._resident.constants]
        served.load_weights(_other(tmp_path / "other"))
        assert places == [tensor.data_ptr() for tensor in served._resident.constants]
        both = {name: ALL[name] for name in ("prefill", "decode")}
        fresh = aotair.build(recipe(tmp_path / "other", both), tmp_path / "fresh.aotair")
        with aotair.load(fresh, enable_output_clone=True) as beside:
            assert torch.equal(_steps(served), _steps(beside))
        other = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "other").eval()
        assert generate(served, PROMPTS, 12) == [checkpoints.generated(other, prompt, 12) for prompt in PROMPTS]


def _steps(served: aotair.Model) -> torch.Tensor:
    """The logits of two prompts, and of a token after each."""
    served.reset_state()
    ids, slots = torch.tensor([[3, 8, 1, 9], [7, 7, 2, 0]]), torch.tensor([2, 0])
    first = served.prefill(ids, (ids > 0).to(torch.int64), slots)
    return torch.stack([first, served.decode(ids[:, 0], torch.tensor([4, 3]), slots)])


def _other(folder: Path) -> Path:
    return checkpoints.write_checkpoint(folder, small(seed=7, vocab_size=256), tokenizer=False)


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "gathered"])
@pytest.mark.parametrize("name", ["DeepseekV2", "DeepseekV3", "MiniCPM3", "Youtu", "AXK1", "Glm4MoeLite"])
def test_absorbed_as_expanded(name: str, in_place: bool, monkeypatch: pytest.MonkeyPatch):
    made = LanguageModel(small(name), 4, 32, in_place=in_place).eval()
    want = logits(made, monkeypatch, expanded=True)
    calls: list[int] = []
    monkeypatch.setattr("aotair.hf.attention.absorbed", lambda *a: (calls.append(1), latent.absorbed(*a))[1])
    torch.testing.assert_close(logits(made, monkeypatch, expanded=False), want, atol=2e-4, rtol=2e-4)
    assert len(calls) == 2 * 2  # layers, calls of decode and verify


def logits(made: LanguageModel, monkeypatch: pytest.MonkeyPatch, expanded: bool) -> list[torch.Tensor]:
    """Of a prompt, of a token after it, and of three more at once."""
    ids, slots = torch.tensor([[3, 8, 1, 9, 0], [7, 7, 2, 0, 0]]), torch.tensor([2, 0])
    mask, lengths = (ids > 0).to(torch.int64), torch.tensor([4, 3])
    with monkeypatch.context() as patch, torch.no_grad():
        if expanded:
            patch.setattr(latent, "_is_latent", lambda _: False)
        found = [made.prefill(ids, mask, slots), made.decode(ids[:, 0], lengths, slots)]
        return [*found, made.verify(ids[:, :3], torch.ones_like(ids[:, :3]), lengths + 1, slots)]


def test_an_original_in_float64_stays_one():
    made = LanguageModel(small().double(), 4, 32).eval()
    ids = torch.tensor([[3, 8, 1]])
    with torch.no_grad():
        made.prefill(ids, torch.ones_like(ids), torch.tensor([1]))
        found = made.decode(torch.tensor([5]), torch.tensor([3]), torch.tensor([1]))
        want = made.model(torch.tensor([[3, 8, 1, 5]])).logits[:, -1]
    torch.testing.assert_close(found, want, atol=1e-12, rtol=1e-12)


class _Biased(torch.nn.Linear):
    """A layer of another type: what it computes is unknown."""


@pytest.mark.parametrize("how", ["a bias", "another layer", "another width"])
def test_what_is_no_plain_matrix_is_expanded(how: str):
    model = small()
    for layer in model.model.layers:
        attention, old = layer.self_attn, layer.self_attn.kv_b_proj
        if how == "another width":
            attention.qk_nope_head_dim += 1
            continue
        kind = _Biased if how == "another layer" else torch.nn.Linear
        attention.kv_b_proj = kind(old.in_features, old.out_features, bias=how == "a bias")
    assert not any(latent._is_latent(module) for module in model.modules())


def test_a_layer_is_itself_again_after_a_call():
    made = LanguageModel(small(), 4, 32).eval()
    before = [vars(module).copy() for module in made.model.modules()]
    call = Call(torch.tensor([[0]]), torch.tensor([0]), torch.ones(1, 1, dtype=torch.bool), 4, 32, False, True)
    with pytest.raises(RuntimeError, match="midst"), Expansions(Rows(made, made._kept, call)).noted(made.model):
        assert "expand_kv" in vars(made.model.model.layers[0].self_attn)
        raise RuntimeError("in the midst")
    assert [vars(module) for module in made.model.modules()] == before
