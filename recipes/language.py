"""Language models of transformers with small configurations and seeded weights, over a cache as checkpoints have it.

Nothing is downloaded. A checkpoint on disk needs no such file: `aotair init DIR` writes its recipe.
"""

import torch
import transformers as tf
from torch import nn

from aotair.hf import experts
from aotair.hf.language import LanguageModel

_SIZES = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}
_LATENT = {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}
_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}


def llama(layers: int = 4, slots: int = 8, length: int = 128, greedy: bool = False, **sizes: int) -> LanguageModel:
    config = tf.LlamaConfig(**_common(layers, length, sizes), num_key_value_heads=4)
    return _make(tf.LlamaForCausalLM(config), slots, length, greedy)


def qwen3(layers: int = 4, slots: int = 8, length: int = 128, greedy: bool = False, **sizes: int) -> LanguageModel:
    config = tf.Qwen3Config(**_common(layers, length, sizes), num_key_value_heads=4, head_dim=32)
    return _make(tf.Qwen3ForCausalLM(config), slots, length, greedy)


def deepseek_v3(
    layers: int = 4, slots: int = 8, length: int = 128, greedy: bool = False, **sizes: int
) -> LanguageModel:
    """Latent attention: a token's cache is one row of 64 numbers and one rotary key of 16, for all heads."""
    config = tf.DeepseekV3Config(
        **_common(layers, length, sizes), **_LATENT, **_EXPERTS, num_key_value_heads=8, moe_intermediate_size=64
    )
    return _make(tf.DeepseekV3ForCausalLM(config), slots, length, greedy)


def _common(layers: int, length: int, sizes: dict[str, int]) -> dict[str, object]:
    return {
        **_SIZES,
        **sizes,
        "num_hidden_layers": layers,
        "max_position_embeddings": length,
        "attn_implementation": "sdpa",
    }


def _make(model: nn.Module, slots: int, length: int, greedy: bool) -> LanguageModel:
    experts.serve(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.add_(torch.randn_like(weight) * 0.1)  # transformers begins with ones, which hide a mistake
    return LanguageModel(model, slots, length, greedy)
