"""Decode steps of a model with latent attention: absorbed, beside the same model whose cache is expanded in each step.

A seeded DeepSeek-V3 of four dense layers with the latents of the real one (512 numbers, and 64 rotated), 16 heads, in
float32. Both are artifacts of one recipe; the peer is what transformers computes, exported as it is.
"""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
import transformers as tf

import aotair
from aotair.hf import latent

from .common import BUILD, Row, options, report
from .decoder_models import seeded

LENGTHS, BATCHES, SLOTS = (256, 1024, 4096), (1, 8), 8
ROUNDS, CALLS = 9, 4
_SIZES = {
    "vocab_size": 1024, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": 256, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "first_k_dense_replace": 4,
    "max_position_embeddings": 4096, "pad_token_id": 0,
}  # fmt: skip


def main() -> None:
    given = options(__doc__).parse_args()
    rows = [row for length in LENGTHS for row in _one(length)]
    report(rows, given.json)


def _one(length: int) -> Iterator[Row]:
    folder = BUILD / "latent"
    if not (folder / "config.json").exists():
        seeded(tf.DeepseekV3Config(**_SIZES)).save_pretrained(folder)
    absorbed = aotair.build(_recipe(folder, length), BUILD / "absorbed.aotair")
    with mock.patch.object(latent, "_is_latent", lambda _: False):
        expanded = aotair.build(_recipe(folder, length), BUILD / "expanded.aotair")
    with aotair.load(absorbed) as ours, aotair.load(expanded) as theirs:
        for batch in BATCHES:
            mine, other = _in_turns(ours, theirs, batch, length)
            yield Row(
                f"cache of {length}, batch {batch}: absorbed / expanded",
                1.0,
                mine / other,
                "x",
                f"{mine:.1f} and {other:.1f} ms",
            )


def _recipe(folder: Path, length: int) -> dict:
    return {
        "name": "latent",
        "model": {"pretrained": str(folder), "kwargs": {"length": length, "slots": SLOTS}},
        "entry_points": {
            "prefill": {"buckets": {"batch": [1], "seq": [32]}},
            "decode": {"buckets": {"batch": list(BATCHES)}},
        },
        "verify": {"level": "sampled"},
    }


def _in_turns(ours: aotair.Model, theirs: aotair.Model, batch: int, length: int) -> tuple[float, float]:
    """Medians of a step in ms, over a cache that is full, in blocks that take turns; the answers agree."""
    ids, positions, slots = torch.full((batch,), 7), torch.full((batch,), length - 1), torch.arange(batch)
    first, second = (model.decode(ids, positions, slots).clone() for model in (ours, theirs))
    torch.testing.assert_close(first, second, atol=1e-3, rtol=1e-3)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for model, found in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            for _ in range(CALLS):
                model.decode(ids, positions, slots)
            found.append(1e3 * (time.perf_counter() - start) / CALLS)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    main()
