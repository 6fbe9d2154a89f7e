"""A small mixture whose experts stand on ranks with tokens of their own, and recipes for it."""

from pathlib import Path

import torch
from mixtures import Experts
from torch import nn

from aotair.model.experts import experts_forward


class Routed(nn.Module):
    """ids (batch, seq) to (batch, seq, width). What it adds to every answer is of its last call: a state. `fault`: what
    is right in the smallest bucket that holds a call, and wrong in a larger one."""

    def __init__(self, seed: int = 3, fault: str = "", width: int = 8, chosen: int = 2):
        super().__init__()
        torch.manual_seed(seed)
        self.fault, self.chosen = fault, chosen
        self.embed, self.gate = nn.Embedding(24, width), nn.Linear(width, 4)
        self.up, self.down = nn.Linear(width, 16), nn.Linear(16, width)
        self.experts = Tables(4, False, width=width, inner=6)
        self.register_buffer("before", torch.zeros(1, dtype=torch.int64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + self.down(torch.tanh(self.up(x)))
        if self.fault == "longer":  # than the smaller bucket
            x = x * 2 if ids.shape[1] > 4 else x
        elif self.fault == "first five":  # which are real in all calls that no smaller bucket holds
            x = x + x[:, :5].sum(1, keepdim=True)
        elif self.fault == "batch":  # every size of which has its bucket
            x = x + x.sum(0, keepdim=True)
        tokens = x.flatten(0, 1)
        weights, chosen = self.gate(tokens).softmax(-1).topk(self.chosen, -1)
        made = x + self.experts(tokens, chosen, weights).view_as(x) + self.before
        self.before.copy_(ids[:1, 0])
        return made


class Tables(Experts):
    forward = experts_forward


STYLES = {"experts": "expert_dispatch", "up": "colwise", "down": "rowwise"}


class Pairs(Tables):
    """What it gives is no tensor."""

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = super().forward(*args)
        return made, made


class Numbered(Tables):
    """It takes a tensor that has no tokens."""

    def forward(self, factor: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
        return factor * super().forward(*args)


class Unlike(Routed):
    """Its experts, called otherwise than by their tokens alone."""

    def __init__(self):
        super().__init__()
        self.pairs, self.numbered = Pairs(4, False, width=8, inner=6), Numbered(4, False, width=8, inner=6)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        tokens = super().forward(ids).flatten(0, 1)
        weights, chosen = self.gate(tokens).softmax(-1).topk(2, -1)
        given = tokens, chosen, weights
        return self.pairs(*given)[0] + self.numbered(torch.ones(()), *given)


def npu_recipe(**mesh: int) -> dict:
    """That of halves on NPUs."""
    model = {"factory": f"{Path(__file__).resolve()}:Routed", "dtype": "float16"}
    return recipe(**mesh) | {"model": model, "target": {"device": "npu"}, "verify": {"atol": 2e-2, "rtol": 2e-2}}


def exchanged_recipe(chosen: int = 2, **mesh: int) -> dict:
    """That of rows as wide as the kernels of Atlas A3 take that send tokens to their experts alone."""
    model = {"factory": f"{Path(__file__).resolve()}:Routed", "dtype": "float16"}
    asked = {"model": model | {"kwargs": {"width": 1024, "chosen": chosen}}, "verify": {"atol": 0.25, "rtol": 2e-2}}
    return npu_recipe(**mesh) | asked | {"target": {"device": "npu", "soc": "Ascend910_93"}}


def recipe(fault: str = "", **mesh: int) -> dict:
    """Its recipe; `up` and `down` are cut where there is a `tp`."""
    styles = {name: style for name, style in STYLES.items() if name == "experts" or "tp" in mesh}
    return {
        "name": "routed",
        "model": {"factory": f"{Path(__file__).resolve()}:Routed", "kwargs": {"fault": fault}},
        "inputs": {"ids": {"shape": ["batch", "seq"], "dtype": "int64", "range": [0, 24], "pad": "any"}},
        "buckets": {"batch": [1, 3], "seq": [4, 8]},
        "mesh": mesh,
        "parallel": styles,
        "verify": {"atol": 1e-5, "rtol": 1e-5},
    }
