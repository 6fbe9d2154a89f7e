"""The decoder of the device benchmarks: its caches are inputs that it writes into."""

import inspect

import torch
from torch import nn

HIDDEN, HEADS, POSITIONS, WORDS = 256, 4, 128, 1000
BATCHES = (1, 2, 4, 8, 16)


class Layer(nn.Module):
    """Attention over a cache of POSITIONS places, and a gated feed-forward block."""

    def __init__(self):
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x, keys, values, position, mask):
        """x is [batch, HIDDEN]; keys, values are [batch, HEADS, POSITIONS, HIDDEN / HEADS], written at `position`."""
        batch = x.shape[0]
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, 3, HEADS, 1, HIDDEN // HEADS).unbind(1)
        keys.index_copy_(2, position, k)
        values.index_copy_(2, position, v)
        scores = torch.matmul(q, keys.transpose(-1, -2)) * (HIDDEN // HEADS) ** -0.5 + mask
        x = x + self.out(torch.matmul(scores.softmax(-1), values).view(batch, HIDDEN))
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


class Decoder(nn.Module):
    """One token of each sequence: `forward(ids, position, k0, v0, k1, v1, …)` gives logits [batch, WORDS]."""

    def __init__(self, layers: int):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(HIDDEN, WORDS)

    def forward(self, ids, position, *caches):
        x = self.words(ids)
        mask = torch.where(torch.arange(POSITIONS, device=ids.device) <= position, 0.0, float("-inf"))
        for number, layer in enumerate(self.layers):
            x = layer(x, caches[2 * number], caches[2 * number + 1], position, mask)
        return self.head(x)


def cache_names(layers: int) -> list[str]:
    return [f"{kind}{number}" for number in range(layers) for kind in "kv"]


class Named(nn.Module):
    """The decoder with a name for each cache, as a recipe wants them."""

    def __init__(self, layers: int):
        super().__init__()
        self.decoder = Decoder(layers)
        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in ("ids", "position", *cache_names(layers))
        ]
        forward = lambda *args, **named: self.decoder(*args, *named.values())  # noqa: E731
        forward.__signature__ = inspect.Signature(parameters)
        self.forward = forward


def make(layers: int) -> nn.Module:
    return Named(layers).eval()


def recipe(layers: int, device: str, batches: tuple[int, ...] = BATCHES) -> dict:
    cache = {"shape": ["batch", HEADS, POSITIONS, HIDDEN // HEADS], "dtype": "float32", "mutated": True}
    inputs = {
        "ids": {"shape": ["batch"], "dtype": "int64", "range": [0, WORDS]},
        "position": {"shape": [1], "dtype": "int64", "range": [0, POSITIONS]},
    }
    return {
        "name": f"decoder{layers}",
        "model": {"factory": "benchmarks.decoder:make", "kwargs": {"layers": layers}},
        "target": {"device": device},
        "inputs": inputs | dict.fromkeys(cache_names(layers), cache),
        "buckets": {"batch": list(batches)},
        "verify": {"atol": 1e-4, "rtol": 1e-3},
    }


def call_inputs(layers: int, batch: int, device: torch.device) -> list[torch.Tensor]:
    """Token ids, a position, and caches of zeros."""
    ids = torch.arange(batch, device="cpu") % WORDS
    caches = [torch.zeros(batch, HEADS, POSITIONS, HIDDEN // HEADS, device=device) for _ in range(2 * layers)]
    return [ids.to(device), torch.tensor([5]).to(device), *caches]
