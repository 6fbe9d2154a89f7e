"""Small checkpoints on disk, as the hub lays them out: seeded models of transformers, and a tokenizer of bytes."""

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers as tf

from benchmarks.decoder_models import DECODERS, seeded

CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
VOCABULARY = 300
__all__ = ["CHAT", "VOCABULARY", "bytewise", "decoder", "generated", "llama", "seeded", "write_checkpoint"]
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}


def llama(**changes: Any) -> tf.PretrainedConfig:
    return tf.LlamaConfig(**{**_SIZES, **changes})


def decoder(name: str, layers: int = 2) -> tf.PretrainedConfig:
    """One of DECODERS with its first layers alone: builds of it take time for each layer, and few prove as much."""
    made = DECODERS[name]()
    kinds = getattr(made, "layer_types", None)
    made.num_hidden_layers = layers
    if kinds is not None:
        made.layer_types = kinds[:layers]
    if getattr(made, "mlp_layer_types", None) is not None:
        made.mlp_layer_types = made.mlp_layer_types[:layers]
    return made


def write_checkpoint(folder: Path, model: torch.nn.Module, tokenizer: bool = True, **options: Any) -> Path:
    """The model's configuration and weights, and a tokenizer of bytes with a chat template."""
    if hasattr(model, "generation_config"):
        model.generation_config.eos_token_id = None
    model.save_pretrained(folder, **options)
    if tokenizer:
        bytewise().save_pretrained(folder)
    return folder


def bytewise() -> tf.PreTrainedTokenizerFast:
    """A token for each byte, and the marks of the chat template."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    marks = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    made.add_special_tokens(marks)
    return tf.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", chat_template=CHAT)


def generated(model: Any, prompt: list[int], count: int) -> list[int]:
    """The tokens that transformers itself gives after a prompt, the likeliest each time, without an end."""
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return [int(token) for token in found[0, len(prompt) :]]
