"""How far do numbers move?"""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass
class Moved:
    """Sums over pairs of tensors: of the squares of their differences, and of what was there before."""

    away: float = 0.0
    whole: float = 0.0

    def see(self, before: Tensor, after: Tensor) -> None:
        """Count a pair of one shape too."""
        wide = before.double()
        self.away += (after.double() - wide).square().sum().item()
        self.whole += wide.square().sum().item()

    @property
    def relative(self) -> float:
        """The norm of all differences over the norm of all that was there."""
        return math.sqrt(self.away / max(self.whole, 1e-60))
