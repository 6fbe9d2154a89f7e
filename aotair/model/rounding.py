"""How a weight of floats becomes whole numbers and scales. All of it is ops over the weight, which a build computes
once, and a load of other weights again."""

import torch
from torch import Tensor

from .quantized_linear import QuantizedWeight


def rounded(weight: Tensor, bits: int, group: int | None = None, kind: torch.dtype = torch.float32) -> QuantizedWeight:
    """A weight (out, in) in groups of so many neighbours of a row, or whole rows: the scale of each is its largest
    absolute value over 127 (8 bits) or 7 (4 bits), rounded to the dtype `kind`; numbers are rounded to the nearest."""
    most = 2 ** (bits - 1) - 1
    wide: Tensor = weight.float() if group is None else weight.float().reshape(-1, group)  # a line for each group
    scale = (wide.abs().amax(1, keepdim=True) / most).to(kind)
    steps = scale.float()
    rows = (wide / torch.where(steps == 0, 1.0, steps)).round().clamp(-most, most).to(torch.int8)
    return QuantizedWeight(rows.view(weight.shape), scale.view(len(weight), -1), None, bits)


def rounded_matrices(matrices: Tensor, kind: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Matrices (experts, in, out) as int8 (experts, out, in), and a scale for each output of each, of the dtype `kind`:
    (experts, out)."""
    lines = matrices.transpose(1, 2)
    weight = rounded(lines.flatten(0, 1), 8, None, kind)
    return weight.rows.view(lines.shape), weight.scale.view(lines.shape[:2])
