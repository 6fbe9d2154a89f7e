"""How large can a size be that depends on a call's inputs?"""

import torch
from torch.utils._sympy.numbers import int_oo


def most(size: int | torch.SymInt) -> float:
    """The largest that a size can be; infinity where nothing limits it."""
    if isinstance(size, int):
        return size
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    return float("inf") if upper is int_oo else int(upper)
