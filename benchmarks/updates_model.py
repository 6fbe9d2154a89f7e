"""The decoder whose lengths change at each step: attention with lists of the host, in so many layers."""

import torch

BATCH, LAYERS, LONGEST = 16, 24, 64


class Decoder(torch.nn.Module):
    def __init__(self, layers: int):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(layers))

    def forward(self, x, keys, lengths):
        for layer in self.layers:
            found, _ = torch.ops.npu.npu_fused_infer_attention_score(
                layer(x), keys, keys, actual_seq_lengths_kv=lengths, num_heads=2, scale=0.35
            )
            x = x + found
        return x


def recipe() -> dict:
    return {
        "name": "updates",
        "model": {"factory": f"{__file__}:Decoder", "kwargs": {"layers": LAYERS}},
        "target": {"device": "npu"},
        "inputs": {
            "x": {"shape": ["n", 1, 16], "dtype": "float32"},
            "keys": {"shape": ["n", LONGEST, 16], "dtype": "float32"},
            "lengths": {"shape": ["n"], "dtype": "int64", "range": [1, LONGEST + 1], "host": True},
        },
        "buckets": {"n": [BATCH]},
    }
