"""Language models from transformers with a static cache: prefill and decode as two methods over one set of buffers.

The configurations are small and the weights seeded, so nothing is downloaded. For a real checkpoint, give its
configuration's numbers as kwargs and its directory as `model.weights`.
"""

import torch
import transformers as tf
from torch import nn

_SIZES = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}
_LATENT = {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}
_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}


class _Caches:
    """What transformers' attention asks of a cache, for one call: take the new rows, give what to attend to."""

    is_compileable = False

    def __init__(self, model: "LanguageModel", places: torch.Tensor, real: torch.Tensor, slots: torch.Tensor | None):
        self._model, self._places, self._real, self._slots = model, places, real, slots

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: object, **__: object) -> tuple:
        return self._one("keys", layer, key), self._one("values", layer, value)

    def get_seq_length(self, layer: int = 0) -> int:
        return 0  # positions and masks are given

    def _one(self, name: str, layer: int, new: torch.Tensor) -> torch.Tensor:
        """Write `new` (batch, heads, seq, width) to its places; gives it back where a prompt attends to itself, else
        whole rows of the cache (batch, heads, length, width)."""
        cache = self._model.get_buffer(f"{name}{layer}")
        batch, heads, seq, width = new.shape
        rows = new.transpose(1, 2).reshape(batch * seq, heads * width)
        # What pads a call writes what is there already: a cache holds nothing but real tokens.
        rows = torch.where(self._real[:, None], rows, cache.index_select(0, self._places))
        cache.index_copy_(0, self._places, rows)
        if self._slots is None:
            return new
        kept = cache.view(-1, self._model.length * heads * width).index_select(0, self._slots)
        return kept.view(batch, self._model.length, heads, width).transpose(1, 2)


class LanguageModel(nn.Module):
    """`slots` rows of `length` tokens, and one more row that padding points to (slot number `slots`).

    Each layer's cache is a buffer ((slots + 1) * length, heads * width): state that both methods share.
    """

    def __init__(self, model: nn.Module, shapes: tuple, slots: int, length: int, greedy: bool):
        super().__init__()
        self.model, self.slots, self.length, self.greedy = model, slots, length, greedy
        for layer in range(model.config.num_hidden_layers):
            for name, (heads, width) in zip(("keys", "values"), shapes):
                cache = torch.zeros((slots + 1) * length, heads * width)
                self.register_buffer(f"{name}{layer}", cache, persistent=False)

    def prefill(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, slots: torch.Tensor):
        """Whole prompts: ids and mask (batch, seq), the row of the cache that each goes to (batch,).

        Gives the logits of each prompt's last token, (batch, vocabulary), or the likeliest token with `greedy`.
        """
        real, seq = attention_mask > 0, input_ids.shape[1]
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
        order = torch.arange(seq, device=input_ids.device)
        seen = (order[:, None] >= order) & real[:, None] | (order[:, None] == order)
        places = torch.where(
            real & (slots < self.slots)[:, None], slots[:, None] * self.length + positions, self._spare
        )
        caches = _Caches(self, places.reshape(-1), (places < self._spare).reshape(-1), None)
        hidden = self._run(input_ids, positions, seen[:, None], caches)
        last = (attention_mask * order).argmax(1)
        return self._answer(hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[-1]))[:, 0])

    def decode(self, input_ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor):
        """One token each: ids, positions and rows of the cache, all (batch,). Gives what `prefill` gives."""
        places = slots * self.length + positions
        seen = torch.arange(self.length, device=input_ids.device) <= positions[:, None]
        caches = _Caches(self, places, slots < self.slots, slots)
        return self._answer(self._run(input_ids[:, None], positions[:, None], seen[:, None, None], caches)[:, 0])

    @property
    def _spare(self) -> int:
        return self.slots * self.length

    def _run(self, ids: torch.Tensor, positions: torch.Tensor, seen: torch.Tensor, caches: _Caches) -> torch.Tensor:
        answer = self.model.model(
            input_ids=ids, position_ids=positions, attention_mask=seen, past_key_values=caches, use_cache=True
        )
        return answer.last_hidden_state

    def _answer(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.model.lm_head(hidden)
        return logits.argmax(-1) if self.greedy else logits


def llama(layers: int = 4, slots: int = 8, length: int = 128, greedy: bool = False, **sizes: int) -> LanguageModel:
    config = tf.LlamaConfig(**_common(layers, length, sizes), num_key_value_heads=4)
    width = config.hidden_size // config.num_attention_heads
    return _make(tf.LlamaForCausalLM(config), ((4, width), (4, width)), slots, length, greedy)


def qwen3(layers: int = 4, slots: int = 8, length: int = 128, greedy: bool = False, **sizes: int) -> LanguageModel:
    config = tf.Qwen3Config(**_common(layers, length, sizes), num_key_value_heads=4, head_dim=32)
    return _make(tf.Qwen3ForCausalLM(config), ((4, 32), (4, 32)), slots, length, greedy)


def deepseek_v3(
    layers: int = 4, slots: int = 8, length: int = 128, greedy: bool = False, **sizes: int
) -> LanguageModel:
    """Latent attention: a token's cache is one row of 64 numbers and one rotary key of 16, for all heads."""
    config = tf.DeepseekV3Config(
        **_common(layers, length, sizes), **_LATENT, **_EXPERTS, num_key_value_heads=8, moe_intermediate_size=64
    )
    model = tf.DeepseekV3ForCausalLM(config)
    model.set_experts_implementation("batched_mm")  # transformers' own loop over experts has data-dependent shapes
    return _make(model, ((1, 64), (1, 16)), slots, length, greedy)


def _common(layers: int, length: int, sizes: dict[str, int]) -> dict[str, object]:
    return {
        **_SIZES,
        **sizes,
        "num_hidden_layers": layers,
        "max_position_embeddings": length,
        "attn_implementation": "sdpa",
    }


def _make(model: nn.Module, shapes: tuple, slots: int, length: int, greedy: bool) -> LanguageModel:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.add_(torch.randn_like(weight) * 0.1)  # transformers begins with ones, which hide a mistake
    return LanguageModel(model, shapes, slots, length, greedy)
