"""The decoder that ranks share out by functional collectives of torch, which an export and TorchAir both take."""

import torch
from torch import nn
from torch.distributed import _functional_collectives as collectives

HIDDEN, HEADS, POSITIONS, WORDS, BATCH = 256, 4, 128, 1000, 4
WIDTH = HIDDEN // HEADS


class Layer(nn.Module):
    """Attention over a cache and a feed-forward block, of which a rank has some heads and some rows."""

    def __init__(self, mesh, ranks: int, rank: int):
        super().__init__()
        self.mesh = mesh
        self.attention_norm, self.norm = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.query, self.key, self.value, self.up = (
            nn.Parameter(_weight(rows, HIDDEN).chunk(ranks)[rank].clone())
            for rows in (HIDDEN, HIDDEN, HIDDEN, 4 * HIDDEN)
        )
        self.out, self.down = (
            nn.Parameter(_weight(HIDDEN, columns).chunk(ranks, 1)[rank].clone()) for columns in (HIDDEN, 4 * HIDDEN)
        )
        for name in ("keys", "values"):
            cache = torch.rand(BATCH, HEADS, POSITIONS, WIDTH).chunk(ranks, 1)[rank].clone()
            self.register_buffer(name, cache)

    def forward(self, x, position, mask):
        """x is (batch, HIDDEN); keys and values, (batch, heads, POSITIONS, WIDTH), are written at `position`."""
        batch, rows = x.shape[0], self.attention_norm(x)
        q, k, v = ((rows @ weight.T).view(batch, -1, 1, WIDTH) for weight in (self.query, self.key, self.value))
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        scores = torch.matmul(q, self.keys.transpose(-1, -2)) * WIDTH**-0.5 + mask
        x = x + self._summed(torch.matmul(scores.softmax(-1), self.values).view(batch, -1) @ self.out.T)
        return x + self._summed(nn.functional.silu(self.norm(x) @ self.up.T) @ self.down.T)

    def _summed(self, x):
        return x if self.mesh is None else collectives.all_reduce(x, "sum", (self.mesh, 0))


class Decoder(nn.Module):
    """One token of each of BATCH sequences: `forward(ids, position)` gives logits (BATCH, WORDS)."""

    def __init__(self, layers: int, mesh=None):
        super().__init__()
        torch.manual_seed(0)
        ranks, rank = (1, 0) if mesh is None else (mesh.size(), mesh.get_local_rank("tp"))
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(Layer(mesh, ranks, rank) for _ in range(layers))
        self.head = nn.Linear(HIDDEN, WORDS)

    def forward(self, ids, position):
        x = self.words(ids)
        mask = torch.where(torch.arange(POSITIONS, device=ids.device) <= position, 0.0, float("-inf"))
        for layer in self.layers:
            x = layer(x, position, mask)
        return self.head(x)


def make(layers: int, mesh=None) -> nn.Module:
    return Decoder(layers, mesh).eval()


def recipe(layers: int, ranks: int, device: str) -> dict:
    return {
        "name": "shared-decoder",
        "model": {"factory": "benchmarks.ranks_decoder:make", "kwargs": {"layers": layers}},
        "target": {"device": device},
        "inputs": {
            "ids": {"shape": [BATCH], "dtype": "int64", "range": [0, WORDS]},
            "position": {"shape": [1], "dtype": "int64", "range": [0, POSITIONS]},
        },
        "mesh": {"tp": ranks},
        "parallel": "model",
        "verify": {"atol": 1e-4, "rtol": 1e-3},
    }


def call_inputs(device: torch.device) -> list[torch.Tensor]:
    """Token ids and a position."""
    return [torch.arange(BATCH, device="cpu").to(device), torch.tensor([5], device="cpu").to(device)]


def _weight(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns) * columns**-0.5
