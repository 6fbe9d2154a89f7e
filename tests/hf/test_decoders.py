"""Do transformers' decoders, over rows of a cache, answer as they do themselves? Each at sizes of its own kind."""

from typing import Any

import checkpoints
import pytest
import torch
import transformers as tf

from aotair.errors import ModelError, UnsupportedError
from aotair.hf import experts
from aotair.hf.agree import refuse_disagreement
from aotair.hf.language import LanguageModel

C: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
WIDE = {"head_dim": 16}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.1 * i for i in range(8)],
    "original_max_position_embeddings": 64,
}


def config(kind: str, **changes: Any) -> tf.PretrainedConfig:
    return getattr(tf, kind)(**{**C, **changes})


DECODERS = {
    "llama": lambda: config("LlamaConfig"),
    "mistral": lambda: config("MistralConfig", sliding_window=8),
    "qwen2": lambda: config("Qwen2Config"),
    "qwen3": lambda: config("Qwen3Config", **WIDE),
    "qwen3_moe": lambda: config("Qwen3MoeConfig", **WIDE, **ROUTED, num_experts=4),
    "mixtral": lambda: config("MixtralConfig", num_local_experts=4, num_experts_per_tok=2),
    "gemma": lambda: config("GemmaConfig", **WIDE),
    "gemma2": lambda: config("Gemma2Config", **WIDE, sliding_window=8),
    "gemma3": lambda: config("Gemma3TextConfig", **WIDE, sliding_window=8),
    "gemma3n": lambda: config(
        "Gemma3nTextConfig",
        **WIDE,
        sliding_window=8,
        vocab_size_per_layer_input=256,
        hidden_size_per_layer_input=16,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        laurel_rank=8,
        activation_sparsity_pattern=[0.0] * 4,
    ),
    "phi": lambda: config("PhiConfig"),
    "phi3": lambda: config("Phi3Config"),
    "phi3_long": lambda: config("Phi3Config", original_max_position_embeddings=64, rope_parameters=dict(LONG_ROPE)),
    "olmo2": lambda: config("Olmo2Config"),
    "olmoe": lambda: config("OlmoeConfig", num_experts=4, num_experts_per_tok=2),
    "granite": lambda: config("GraniteConfig", logits_scaling=2.0, attention_multiplier=0.2, residual_multiplier=0.5),
    "granitemoe": lambda: config("GraniteMoeConfig", num_local_experts=4, num_experts_per_tok=2, logits_scaling=2.0),
    "glm4": lambda: config("Glm4Config", **WIDE),
    "glm4_moe": lambda: config("Glm4MoeConfig", **WIDE, **ROUTED, n_routed_experts=4),
    "falcon": lambda: tf.FalconConfig(
        vocab_size=256, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, alibi=False, multi_query=True
    ),
    "falcon_alibi": lambda: tf.FalconConfig(
        vocab_size=256, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, alibi=True, multi_query=True
    ),
    "bloom": lambda: tf.BloomConfig(vocab_size=256, hidden_size=64, n_layer=4, n_head=4),
    "gpt_neox": lambda: tf.GPTNeoXConfig(**{name: size for name, size in C.items() if name != "num_key_value_heads"}),
    "gpt2": lambda: tf.GPT2Config(vocab_size=256, n_embd=64, n_layer=4, n_head=4, n_positions=128),
    "opt": lambda: tf.OPTConfig(
        vocab_size=256,
        hidden_size=64,
        ffn_dim=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=128,
        word_embed_proj_dim=64,
    ),
    "starcoder2": lambda: config("Starcoder2Config", sliding_window=8),
    "stablelm": lambda: config("StableLmConfig"),
    "cohere2": lambda: config("Cohere2Config", sliding_window=8),
    "smollm3": lambda: config("SmolLM3Config"),
    "exaone4": lambda: config("Exaone4Config", sliding_window=8, sliding_window_pattern=2),
    "gpt_oss": lambda: config("GptOssConfig", **WIDE, num_local_experts=4, num_experts_per_tok=2, sliding_window=8),
    "llama4": lambda: config(
        "Llama4TextConfig", **WIDE, num_local_experts=4, intermediate_size_mlp=128, attention_chunk_size=8
    ),
    "mamba": lambda: tf.MambaConfig(vocab_size=256, hidden_size=64, num_hidden_layers=3, state_size=8),
    "mamba2": lambda: tf.Mamba2Config(
        vocab_size=256, hidden_size=64, num_hidden_layers=3, state_size=8, num_heads=8, head_dim=16, n_groups=2
    ),
    "jamba": lambda: config(
        "JambaConfig",
        num_experts=4,
        num_experts_per_tok=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        use_mamba_kernels=False,
        mamba_d_state=8,
    ),
    "lfm2": lambda: config("Lfm2Config", layer_types=["conv", "full_attention"] * 2),
    "qwen3_next": lambda: config(
        "Qwen3NextConfig",
        **WIDE,
        **ROUTED,
        num_experts=4,
        shared_expert_intermediate_size=32,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
    "deepseek_v2": lambda: config("DeepseekV2Config", **LATENT, **ROUTED, n_routed_experts=4),
    "deepseek_v3": lambda: config("DeepseekV3Config", **LATENT, **ROUTED, n_routed_experts=4, n_group=2, topk_group=1),
}
LENGTHS = (3, 17, 5, 12, 1)
STEPS = 12


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request: pytest.FixtureRequest) -> tuple[torch.nn.Module, LanguageModel, list[torch.Tensor]]:
    """A model, the same over eight rows of 64 tokens, and sequences of `LENGTHS` and twelve tokens more."""
    model = checkpoints.seeded(DECODERS[request.param]())
    generator = torch.Generator().manual_seed(1)
    whole = [torch.randint(1, 256, (length + STEPS,), generator=generator) for length in LENGTHS]
    experts.serve(model)
    return model, LanguageModel(model, 8, 64).eval(), whole


def padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.stack([torch.nn.functional.pad(row, (0, width - len(row)), value=7) for row in rows])
    return ids, torch.stack([(torch.arange(width) < len(row)).to(torch.int64) for row in rows])


def near(got: torch.Tensor, want: torch.Tensor, scale: float) -> bool:
    return bool((got - want).abs().max() <= 2e-5 * scale)


def test_tokens_one_by_one_get_the_logits_of_whole_sequences(decoder):
    model, made, whole = decoder
    slots = torch.tensor([4, 2, 0, 7, 3])
    with torch.no_grad():
        want = [model(input_ids=row[None], use_cache=False).logits[0] for row in whole]
        steps = [made.prefill(*padded([row[:n] for row, n in zip(whole, LENGTHS)]), slots)]
        for step in range(STEPS):
            tokens = torch.stack([row[n + step] for row, n in zip(whole, LENGTHS)])
            steps.append(made.decode(tokens, torch.tensor(LENGTHS) + step, slots))
    scale = max(float(row.abs().max()) for row in want)
    for step, got in enumerate(steps):
        assert near(got, torch.stack([row[n - 1 + step] for row, n in zip(want, LENGTHS)]), scale), step


def test_rows_of_padding_and_of_others_stay_what_they_are(decoder):
    _, made, whole = decoder
    with torch.no_grad():
        made.prefill(*padded([row[:n] for row, n in zip(whole, LENGTHS)]), torch.tensor([4, 2, 0, 7, 3]))
        before = [row.clone() for row in made.rows()]
        made.decode(torch.tensor([5, 6]), torch.tensor([3, 9]), torch.tensor([4, 8]))  # the second one is padding
    for old, new in zip(before, made.rows(), strict=True):
        rows = len(new) // 9
        changed = {
            n for n in range(9) if not torch.equal(old[n * rows : (n + 1) * rows], new[n * rows : (n + 1) * rows])
        }
        assert changed <= {4}


def test_what_extends_a_sequence_gets_the_logits_of_the_whole(decoder):
    model, made, whole = decoder
    if made.recurrent:
        with pytest.raises(UnsupportedError, match="recurrent"):
            made.extend(*padded(whole), torch.tensor(LENGTHS), torch.arange(5))
        return
    slots, counts = torch.tensor([1, 6, 5, 2, 0]), (4, 12, 7, 1, 9)
    ids, mask = padded([row[n : n + count] for row, n, count in zip(whole, LENGTHS, counts)])
    starts = torch.tensor(LENGTHS)
    with torch.no_grad():
        want = [model(input_ids=row[None], use_cache=False).logits[0] for row in whole]
        scale = max(float(row.abs().max()) for row in want)
        made.prefill(*padded([row[:n] for row, n in zip(whole, LENGTHS)]), slots)
        every = made.verify(ids, mask, starts, slots)
        made.prefill(*padded([row[:n] for row, n in zip(whole, LENGTHS)]), slots)
        last = made.extend(ids, mask, starts, slots)
    for row, (n, count) in enumerate(zip(LENGTHS, counts)):
        assert near(every[row, :count], want[row][n : n + count], scale)
        assert near(last[row], want[row][n + count - 1], scale)


def test_the_check_before_a_build_agrees(decoder):
    _, made, _ = decoder
    refuse_disagreement(made, "here")
    assert not any(row.any() for row in made.rows()), "the rows are as they were"


@pytest.mark.parametrize("fault", ["window", "positions", "heads", "state"])
def test_the_check_before_a_build_sees_a_fault(fault: str, monkeypatch: pytest.MonkeyPatch):
    kind = {"window": "mistral", "state": "lfm2"}.get(fault, "llama")
    made = LanguageModel(checkpoints.seeded(DECODERS[kind]()), 8, 64).eval()
    if fault == "window":
        made.model.config.sliding_window = None
        made._answer, honest = lambda *args: _with_window(made, honest, *args), made._answer
    elif fault == "positions":
        monkeypatch.setattr(
            "aotair.hf.caches.Call.positions", property(lambda call: torch.ones_like(call.real, dtype=torch.int64))
        )
    elif fault == "heads":
        monkeypatch.setattr("aotair.hf.caches._AttentionLayer._one", _heads_swapped)
    else:
        monkeypatch.setattr("aotair.hf.caches._StateLayer.store", lambda layer: None)
    with pytest.raises(UnsupportedError, match="computes something else over rows of a cache"):
        refuse_disagreement(made, "here")


def _with_window(made: LanguageModel, honest: Any, *args: Any) -> torch.Tensor:
    made.model.config.sliding_window = 8
    try:
        return honest(*args)
    finally:
        made.model.config.sliding_window = None


def _heads_swapped(layer: Any, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    call = layer._call
    batch, heads, tokens, width = new.shape
    rows = new.flip(1).transpose(1, 2).reshape(batch * tokens, heads * width)
    cache.index_copy_(0, call.places, torch.where(call.written, rows, cache.index_select(0, call.places)))
    if call.fresh:
        return new
    kept = cache.view(-1, call.length * heads * width).index_select(0, call.slots)
    return kept.view(batch, call.length, heads, width).transpose(1, 2)


@pytest.mark.parametrize("kind, length", [("phi3_long", 65), ("llama4", 8192)])
def test_what_changes_for_a_whole_batch_with_its_longest_sequence_is_refused_by_name(kind: str, length: int):
    model = checkpoints.seeded(DECODERS[kind]())
    with pytest.raises(ModelError, match="changes for all sequences of a batch"):
        LanguageModel(model, 1, length)
