"""Which calls of the CPU are made ready when they are bound? Those whose kernels have to look at much that stays."""

from collections.abc import Callable, Mapping, Sequence

import torch

from . import attention, onednn_norm

Prepare = Callable[[Sequence[object], Mapping[str, object]], Callable[[], object] | None]

# The arguments of a call, with where its only result goes as `out`, though the op may have no such argument.
_OWN: Mapping[str, Prepare] = {"air::paged_attention.out": attention.prepared}  # the same numbers
_OTHERS: Mapping[str, Prepare] = {"aten::layer_norm": onednn_norm.layer_norm}  # by another library than torch


def prepared(
    op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object], by_others: bool
) -> Callable[[], object] | None:
    """A call that does the same as the op; None where there is none. `by_others`: also by kernels that are not torch's,
    and may round otherwise."""
    prepare = _OWN.get(op.name()) or (_OTHERS.get(op.name()) if by_others else None)
    return None if prepare is None else prepare(args, kwargs)
