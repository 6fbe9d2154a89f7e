"""A model of blocks with norms between, of which ranks can make some rows each."""

import torch
from torch import Tensor, nn

PLAN = {"words": "vocabulary", "*.up": "colwise", "*.down": "rowwise", "*norm": "sequence"}
IDS = {"ids": {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 32], "pad": "any"}}


class Block(nn.Module):
    def __init__(self, norm: nn.Module, width: int):
        super().__init__()
        self.norm, self.up, self.down = norm, nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * self.down(torch.relu(self.up(self.norm(x))))


class Blocks(nn.Module):
    def __init__(self, kind: type[nn.Module] = nn.LayerNorm, width: int = 16):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.norm = nn.Embedding(32, width), nn.LayerNorm(width)
        self.blocks = nn.Sequential(Block(kind(width), width), Block(kind(width), width))

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.blocks(self.words(ids)))
