"""A model of blocks with norms between, of which ranks can make some rows each."""

import torch
from torch import Tensor, nn

PLAN = {"words": "vocabulary", "*.up": "colwise", "*.down": "rowwise", "*norm": "sequence"}
IDS = {"ids": {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 32], "pad": "any"}}


class Block(nn.Module):
    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norm, self.up, self.down = norm, nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * self.down(torch.relu(self.up(self.norm(x))))


class Blocks(nn.Module):
    def __init__(self, kind: type[nn.Module] = nn.LayerNorm):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.norm = nn.Embedding(32, 16), nn.LayerNorm(16)
        self.blocks = nn.Sequential(Block(kind(16)), Block(kind(16)))

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.blocks(self.words(ids)))
