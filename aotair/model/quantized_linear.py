"""A linear layer whose weight is whole numbers and scales: what it computes, and with which ops of the target."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..target.target import Target


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight (out, in) in groups along its rows: `(rows - zero) * scale`.

    rows: (out, in) int8, within -2**(bits - 1) … 2**(bits - 1) - 1. scale: (out, groups), float; each is that of
    `in / groups` neighbours. zero: (out, groups) int8 or float, or None where it is 0 everywhere. bits: 8 or 4.
    """

    rows: Tensor
    scale: Tensor
    zero: Tensor | None
    bits: int

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The weight (out, in) in `dtype`, computed in float32."""
        wide = self.rows.float().unflatten(1, (self.scale.shape[1], -1))
        if self.zero is not None:
            wide = wide - self.zero.float().unsqueeze(2)
        whole: Tensor = (wide * self.scale.float().unsqueeze(2)).flatten(1)
        return whole.to(dtype)


def weight_only(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, target: Target) -> Tensor:
    """`x @ weight.T + bias` in the dtype of x; only the weight is quantised."""
    return torch.nn.functional.linear(x, weight.dequantized(x.dtype), bias)
