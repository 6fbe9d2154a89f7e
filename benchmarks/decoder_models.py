"""Decoders of transformers, each with a small configuration of its own kind: windows, experts, states, soft caps."""

from typing import Any

import torch
import transformers as tf

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


def seeded(config: Any, seed: int = 0, kind: Any = tf.AutoModelForCausalLM) -> Any:
    """A model in float32 with weights wide enough that its tokens vary, and that layers matter."""
    torch.manual_seed(seed)
    model = kind.from_config(config).eval().float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2 and "norm" in name:
                weight.add_(torch.randn_like(weight) * 0.1)
            elif weight.dim() >= 2:
                weight.mul_(3)
    return model
