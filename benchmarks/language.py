"""Decode steps of small language models from transformers: seeded weights, static key and value caches as buffers."""

import torch
import transformers as tf
from torch import nn

from aotair.hf.caches import cache_argument

_COMMON = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "max_position_embeddings": 128,
    "attn_implementation": "sdpa",
}
_LATENT = {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}
_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}


class _Caches:
    """What transformers' attention asks of a cache: write the new rows, give everything."""

    is_compileable = False

    def __init__(self, keys: list[torch.Tensor], values: list[torch.Tensor], position: torch.Tensor):
        self._keys, self._values, self._position = keys, values, position

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: object, **__: object) -> tuple:
        for cache, row in ((self._keys[layer], key), (self._values[layer], value)):
            cache.index_copy_(2, self._position, row)
        return self._keys[layer], self._values[layer]

    def get_seq_length(self, layer: int = 0) -> int:
        return 0  # positions and mask are given


class Decode(nn.Module):
    """`ids` (batch, 1) int64 at `position` (1,) int64 -> logits (batch, 1, vocabulary); the caches are state."""

    def __init__(self, model: nn.Module, shapes: tuple[tuple[int, int], tuple[int, int]], batch: int, length: int):
        super().__init__()
        self.model, self.layers = model, model.config.num_hidden_layers
        for number in range(self.layers):
            for name, (heads, width) in zip(("key", "value"), shapes):
                self.register_buffer(f"{name}{number}", torch.zeros(batch, heads, length, width))

    def forward(self, ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        keys, values = ([getattr(self, f"{n}{i}") for i in range(self.layers)] for n in ("key", "value"))
        seen = torch.arange(keys[0].shape[2], device=ids.device) <= position[:, None]
        answer = self.model(
            input_ids=ids,
            position_ids=position[None],
            attention_mask=seen[None, None],
            use_cache=True,
            **{cache_argument(self.model): _Caches(keys, values, position)},
        )
        return answer.logits


def _decode(model: nn.Module, *shapes: tuple[int, int], batch: int, length: int) -> Decode:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.add_(torch.randn_like(weight) * 0.1)  # transformers begins with ones, which hide a mistake
    return Decode(model, shapes, batch, length)


def llama(layers: int = 4, batch: int = 2, length: int = 32) -> Decode:
    config = tf.LlamaConfig(**_COMMON, num_hidden_layers=layers, num_key_value_heads=4)
    return _decode(tf.LlamaForCausalLM(config), (4, 32), (4, 32), batch=batch, length=length)


def qwen3(layers: int = 4, batch: int = 2, length: int = 32) -> Decode:
    config = tf.Qwen3Config(**_COMMON, num_hidden_layers=layers, num_key_value_heads=4, head_dim=32)
    return _decode(tf.Qwen3ForCausalLM(config), (4, 32), (4, 32), batch=batch, length=length)


def deepseek_v3(layers: int = 4, batch: int = 2, length: int = 32) -> Decode:
    config = tf.DeepseekV3Config(
        **_COMMON, **_LATENT, **_EXPERTS, num_hidden_layers=layers, num_key_value_heads=8, moe_intermediate_size=64
    )
    model = tf.DeepseekV3ForCausalLM(config)
    model.set_experts_implementation("batched_mm")  # transformers' own loop over experts has data-dependent shapes
    return _decode(model, (1, 64), (1, 16), batch=batch, length=length)


MODELS = {"llama": llama, "qwen3": qwen3, "deepseek_v3": deepseek_v3}


def recipe(name: str, layers: int = 4, batch: int = 2, length: int = 32, **parts: object) -> dict:
    """A recipe of a decode step in float16 for an NPU."""
    kwargs = {"layers": layers, "batch": batch, "length": length}
    return {
        "name": name,
        "model": {"factory": f"benchmarks.language:{name}", "kwargs": kwargs, "dtype": "float16"},
        "target": {"device": "npu"},
        "inputs": {
            "ids": {"shape": [batch, 1], "dtype": "int64", "range": [0, _COMMON["vocab_size"]]},
            "position": {"shape": [1], "dtype": "int64", "range": [0, length]},
        },
        "verify": {"atol": 2e-2, "rtol": 2e-2},
        **parts,
    }
