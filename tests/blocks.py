"""Decoders for NPUs over a paged cache: recipes, a configuration whose latent attention one op begins, and calls."""

from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
import transformers as tf

import aotair
from aotair.hf import latent_prolog

PROMPTS = [[5, 9, 200], [17, 3, 3, 8, 250, 99, 1, 4, 31]]


def recipe(folder: Path, dtype: str = "float16", device: str = "npu", **kwargs: Any) -> dict[str, Any]:
    options = {"cache": "paged", "slots": 4, "length": 64, "block": 16, **kwargs}
    return {
        "name": "blocks",
        "model": {"pretrained": str(folder), "task": "text-generation", "dtype": dtype, "kwargs": options},
        "entry_points": {
            "prefill": {"buckets": {"batch": [1, 2], "seq": [16]}},
            "decode": {"buckets": {"batch": [1, 2]}},
        },
        "target": {"device": device},
    }


def latent() -> tf.PretrainedConfig:
    """Of the widths that the op has a kernel for: latents of 512 numbers, rotated keys of 64."""
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 16, "v_head_dim": 16, "q_lora_rank": None}
    heads = {"num_key_value_heads": 4, "head_dim": 64, "first_k_dense_replace": 2}
    return tf.DeepseekV3Config(**checkpoints.llama().to_diff_dict() | sizes | heads | {"model_type": "deepseek_v3"})


def prologs(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> tf.PretrainedConfig:
    """Latent attention whose queries and rows one op makes, whose widths are smaller here than on a device."""
    sizes = {"hidden_size": 64, "q_lora_rank": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 16, "qk_rope_head_dim": 64}
    monkeypatch.setattr(latent_prolog, "_WIDTHS", {n: size for n, size in sizes.items() if n != "hidden_size"})
    monkeypatch.setattr(latent_prolog, "_HIDDEN", (sizes["hidden_size"],))
    return tf.DeepseekV3Config(**latent().to_diff_dict() | sizes | {"model_type": "deepseek_v3"} | changed)


def decoding(folder: Path, weight_nz: bool) -> dict[str, Any]:
    found = recipe(folder, "bfloat16") | {"config": {"experimental_config": {"weight_nz": weight_nz}}}
    found["entry_points"] = {
        "prefill": {"buckets": {"batch": [2], "seq": [16]}},
        "decode": {"buckets": {"batch": [3]}},
    }
    return found


def tokens_by_rows(served: aotair.Model, rows: list[int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The logits of some tokens after each prompt, in rows of a call of three, and what the states then hold."""
    table, device = torch.tensor([[3, 1, 16, 16], [0, 2, 16, 16]]), served.device
    ids, mask = (torch.zeros(2, 9, dtype=torch.int64) for _ in range(2))
    for row, prompt in enumerate(PROMPTS):
        ids[row, : len(prompt)], mask[row, : len(prompt)] = torch.tensor(prompt), 1
    made = [served.prefill(*(one.to(device) for one in (ids, mask, table))).float().cpu()]
    places, lengths = torch.full((3, 4), 16), torch.ones(3, dtype=torch.int64)
    places[rows], lengths[rows] = table, torch.tensor([len(prompt) for prompt in PROMPTS]) + 1
    for token in (7, 8, 9):
        real = lengths > 1
        given = torch.full((3,), token), (lengths - 1) * real, places
        logits = served.decode(*(one.to(device) for one in given), lengths.tolist())
        made.append(logits[rows].float().cpu())
        lengths = torch.where(real, lengths + 1, lengths)
    return made, [state.cpu().clone() for state in served.state.values()]
