"""A model that two ranks share out, and that writes into an input; and its recipe."""

from pathlib import Path

import torch
from torch import nn


class Written(nn.Module):
    """Adds into an input what two layers make of another, and gives that."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, into: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        into.add_(self.down(torch.tanh(self.up(x))))
        return into * 2


WRITTEN = {
    "name": "written",
    "model": {"factory": f"{Path(__file__).resolve()}:Written"},
    "inputs": {
        "into": {"shape": [2, 8], "dtype": "float32", "mutated": True},
        "x": {"shape": [2, 8], "dtype": "float32"},
    },
    "buckets": {},
    "mesh": {"tp": 2},
    "parallel": {"up": "colwise", "down": "rowwise"},
}
