"""How a weight of floats becomes whole numbers and scales. All of it is ops over the weight, which a build computes
once, and a load of other weights again."""

import torch
from torch import Tensor

from .quantized_linear import QuantizedWeight

_FARTHEST = 256  # steps between a zero point and the numbers of its group


def rounded(weight: Tensor, bits: int, group: int | None = None, kind: torch.dtype = torch.float32) -> QuantizedWeight:
    """A weight (out, in) in groups of so many neighbours of a row, or whole rows.

    The scale of each is its largest absolute value over 127 (8 bits), or what lies between its smallest and largest
    number over 15 (4 bits), which then has a zero point; both are rounded to the dtype `kind`, numbers to the nearest.
    """
    wide: Tensor = weight.float() if group is None else weight.float().reshape(-1, group)  # a line for each group
    scale, zero = _symmetric(wide) if bits == 8 else _between(wide)
    scale, zero = scale.to(kind), None if zero is None else zero.to(kind)
    steps = scale.float()
    numbers = wide / torch.where(steps == 0, 1.0, steps)
    numbers = numbers if zero is None else numbers + zero.float()
    least = -127 if bits == 8 else -8
    rows = numbers.round().clamp(least, 2 ** (bits - 1) - 1).to(torch.int8)
    own = None if zero is None else zero.view(len(weight), -1)
    return QuantizedWeight(rows.view(weight.shape), scale.view(len(weight), -1), own, bits)


def _symmetric(wide: Tensor) -> tuple[Tensor, None]:
    return wide.abs().amax(1, keepdim=True) / 127, None


def _between(wide: Tensor) -> tuple[Tensor, Tensor]:
    """For numbers -8 … 7. A group whose numbers are nearly equal has a scale that keeps its zero point small, because
    that is rounded too."""
    low, high = wide.amin(1, keepdim=True), wide.amax(1, keepdim=True)
    middle = low / 2 + high / 2
    scale = torch.maximum((high - low) / 15, middle.abs() / _FARTHEST)
    return scale, -0.5 - middle / torch.where(scale == 0, 1.0, scale)


def rounded_matrices(matrices: Tensor, kind: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Matrices (experts, in, out) as int8 (experts, out, in), and a scale for each output of each, of the dtype `kind`:
    (experts, out)."""
    lines = matrices.transpose(1, 2)
    weight = rounded(lines.flatten(0, 1), 8, None, kind)
    return weight.rows.view(lines.shape), weight.scale.view(lines.shape[:2])
