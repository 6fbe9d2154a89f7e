"""Random values for states, as calls of the original leave them: a cache holds keys and values, not any numbers."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

_ENOUGH = 8  # numbers that say what others are like


@dataclass
class _Seen:
    """Of what was written, by place in the last dimension: how many numbers, their sum, and that of their squares; and
    the least and greatest of all."""

    count: torch.Tensor
    total: torch.Tensor
    squares: torch.Tensor
    least: float = float("inf")
    greatest: float = -float("inf")


class Lived:
    """What calls were seen to write into floating-point states."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def saw(self, name: str, before: torch.Tensor, after: torch.Tensor) -> None:
        """A call that left a state otherwise. What it wrote are the rows that differ."""
        if not after.dtype.is_floating_point or not after.numel():
            return
        width = after.shape[-1] if after.dim() else 1
        before, rows = before.reshape(-1, width), after.reshape(-1, width)
        rows = rows[(before != rows).any(1)].double()
        finite = rows.isfinite()
        if not finite.any():
            return
        nothing = torch.zeros(width, dtype=torch.float64)
        seen = self._seen.setdefault(name, _Seen(nothing.clone(), nothing.clone(), nothing.clone()))
        rows = torch.where(finite, rows, 0.0)
        seen.count += finite.sum(0)
        seen.total += rows.sum(0)
        seen.squares += rows.square().sum(0)
        seen.least = min(seen.least, float(rows[finite].min()))
        seen.greatest = max(seen.greatest, float(rows[finite].max()))

    def states(self, states: Mapping[str, torch.Tensor], stream: int = 0) -> dict[str, torch.Tensor]:
        """Random values for floating-point states, with the mean and deviation of what was written at each place of the
        last dimension, and within its ends; around 0 with deviation 1 where too little was. Of other states only the
        model knows what they may be."""
        generator = torch.Generator().manual_seed(stream)
        return {
            name: self._like(name, torch.randn(tensor.shape, generator=generator)).to(tensor.dtype)
            for name, tensor in states.items()
            if tensor.dtype.is_floating_point
        }

    def _like(self, name: str, normal: torch.Tensor) -> torch.Tensor:
        seen = self._seen.get(name)
        if seen is None or seen.count.sum() < _ENOUGH or not seen.least < seen.greatest:
            return normal
        count, total, squares = seen.count, seen.total, seen.squares
        if count.min() < _ENOUGH:
            count, total, squares = count.sum(), total.sum(), squares.sum()
        mean = total / count
        deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
        return normal.mul_(deviation.float()).add_(mean.float()).clamp_(seen.least, seen.greatest)
