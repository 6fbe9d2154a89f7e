"""How are the keys and values of a token kept in eight bits? In whole numbers, with one scale for each head of it."""

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
