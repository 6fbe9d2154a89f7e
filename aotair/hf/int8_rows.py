"""How are the keys and values of a token kept in eight bits? In whole numbers, with one scale for each head of it."""

from dataclasses import dataclass

import torch
from torch import Tensor

_MOST = 127


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers like rows (…, heads, width), int8, and their scales (…, heads), float32: the largest absolute value
    of a head over 127. A NaN or an infinity is in the scale, so that it is not lost."""
    wide = rows.to(torch.float32)
    scales = wide.abs().amax(-1) / _MOST
    units = torch.where(scales == 0, 1, scales)
    return (wide / units[..., None]).round().clamp(-_MOST, _MOST).to(torch.int8), scales


def widened(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """What was rounded: `numbers` (…, heads, width) times `scales` (…, heads), in `dtype`."""
    return (numbers.to(torch.float32) * scales[..., None]).to(dtype)


@dataclass
class Moves:
    """How far rounding moves rows."""

    away: float = 0.0
    whole: float = 0.0

    def see(self, rows: Tensor) -> None:
        """Count rows (…, heads, width) too."""
        wide = rows.to(torch.float64)
        self.away += (widened(*rounded(rows), torch.float64) - wide).square().sum().item()
        self.whole += wide.square().sum().item()

    @property
    def relative(self) -> float:
        """The norm of all differences over the norm of all rows."""
        return (self.away / self.whole) ** 0.5 if self.whole else 0.0
