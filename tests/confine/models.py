"""Small models whose artifacts are what `mutants` begins with: one for each kind of memory that a program may have."""

import torch
from torch import nn

Batch = {"buckets": {"batch": [1, 3]}}


def _input(*shape: object, dtype: str = "float32", **more: object) -> dict[str, object]:
    return {"shape": list(shape), "dtype": dtype, **more}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(nn.functional.layer_norm(self.embed(ids), [16])).unflatten(-1, (3, 2, 8)).unbind(2)
        mixed = nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)))
        return self.out(nn.functional.gelu(mixed.transpose(1, 2).flatten(2)))


class Cache(nn.Module):
    """A state, and an input that is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4, 6))
        self.scale = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, at: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        self.seen.index_copy_(0, at, x)
        kept.index_put_((at,), self.scale(x))
        return (kept.sum(0) + self.seen.mean(0)).sort().values


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        y = nn.functional.max_pool2d(self.conv(x).relu(), 2)
        up = nn.functional.interpolate(y, scale_factor=2.0, mode="bilinear")
        return torch.cat([up, x], 1), {"top": y.flatten(1).topk(3).values, "where": y.flatten(1).argmax(1)}


class Whole(nn.Module):
    """A prologue, which makes weights at load, and recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.steps = nn.Linear(32, 64), nn.LSTM(8, 6, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.steps(self.wide(x).unflatten(-1, (8, 8)))[0].cumsum(1)


# Each with its inputs, and what else its recipe says.
MODELS = {
    "attention": (Attention, {"ids": _input("batch", 5, dtype="int64", range=[0, 20])}, Batch),
    "cache": (
        Cache,
        {
            "x": _input(2, 6),
            "at": _input(2, dtype="int64", range=[0, 4]),
            "kept": _input(4, 6, mutated=True),
        },
        {},
    ),
    "image": (Image, {"x": _input("batch", 3, 8, 8)}, Batch),
    "whole": (Whole, {"x": _input(4, 32)}, {"quantize": {"linear": "int8_dynamic"}}),
}
