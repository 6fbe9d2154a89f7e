"""Which calls of the CPU are made ready when they are bound? Those whose kernels have to look at much that stays."""

from collections.abc import Callable, Mapping, Sequence

import torch

from . import attention, onednn_int8, short_attention

Prepare = Callable[[Sequence[object], Mapping[str, object]], Callable[[], object] | None]
_BY_OP: Mapping[str, Prepare] = {"air::paged_attention.out": attention.prepared}
_BY_LIBRARY: Mapping[str, Prepare] = {"air::dynamic_quant.out": onednn_int8.rounding}
PrepareInto = Callable[[Sequence[object], Mapping[str, object], torch.Tensor], Callable[[], object] | None]
_INTO: Mapping[str, PrepareInto] = {"aten::scaled_dot_product_attention": short_attention.prepared}


def prepared(
    op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object], by_library: bool
) -> Callable[[], object] | None:
    """A call that gives what the op gives, without torch's dispatcher; None where there is none. `by_library`: one
    that is installed may be called, as it is for packed weights."""
    prepare = _BY_OP.get(op.name()) or (_BY_LIBRARY.get(op.name()) if by_library else None)
    return None if prepare is None else prepare(args, kwargs)


def prepared_into(
    op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object], target: torch.Tensor
) -> Callable[[], object] | None:
    """A call that writes what an op without an out argument gives into `target`; None where there is none."""
    prepare = _INTO.get(op.name())
    return None if prepare is None else prepare(args, kwargs, target)
