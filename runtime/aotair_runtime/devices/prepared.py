"""Which calls of the CPU are made ready when they are bound? Those whose kernels have to look at much that stays."""

from collections.abc import Callable, Mapping, Sequence

import torch

from . import attention, onednn_int8

Prepare = Callable[[Sequence[object], Mapping[str, object]], Callable[[], object] | None]
_BY_OP: Mapping[str, Prepare] = {
    "air::dynamic_quant.out": onednn_int8.rounding,
    "air::paged_attention.out": attention.prepared,
}


def prepared(
    op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> Callable[[], object] | None:
    """A call that gives what the op gives, without torch's dispatcher; None where there is none."""
    prepare = _BY_OP.get(op.name())
    return None if prepare is None else prepare(args, kwargs)
