"""What does an instruction do, as steps? What is no small op, or is called with what the library does not take, has
none, and is called as ever: numbers of other dtypes, memory that is written while it is read in another order, rows
that are longer than a thread holds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import attention, elementwise, rows
from .written import Steps

_Make = Callable[[str, Tensor, Sequence[Any], dict[str, Any]], Steps | None]
_MAKERS: Mapping[str, _Make] = {
    "copy": elementwise.copy,
    "gelu": elementwise.of_one,
    **dict.fromkeys(elementwise.OF_ONE, elementwise.of_one),
    **dict.fromkeys(elementwise.OF_TWO, elementwise.of_two),
    "pow": elementwise.power,
    "cat": elementwise.cat,
    "where": elementwise.where,
    "index_select": rows.index_select,
    "index_copy": rows.index_copy,
    "mean": rows.reduced,
    "sum": rows.reduced,
    "_softmax": rows.softmax,
    "layer_norm": rows.layer_norm,
    "native_layer_norm": rows.layer_norm,
    "scaled_dot_product_attention": attention.attention,
}
_OUT_NAMES = frozenset({"out", "tokens"})
_OUTS: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any]], Steps | None]] = {
    "air::dynamic_quant": rows.dynamic_quant,
    "air::paged_attention": attention.paged_attention,
}


def steps(
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    targets: Sequence[Tensor | None] | None = None,
) -> Steps | None:
    """What a call with all of its arguments does, as steps; None where it is no such. `targets`: where its results are
    copied to, which the op does not write by itself."""
    name = op._schema.name
    if name in _OUTS:
        return _OUTS[name](args, kwargs) if targets is None and kwargs.keys() & _OUT_NAMES else None
    own, given = name.removeprefix("aten::"), dict(kwargs)
    make = _MAKERS.get(own.removesuffix("_"))
    if make is None or own == name:
        return None
    if targets is not None:
        out = targets[0] if targets and not any(one is not None for one in targets[1:]) else None
    else:
        out = args[0] if own.endswith("_") and args else given.pop("out", None)
    if not isinstance(out, Tensor) or not out.numel():
        return None
    return make(own.removesuffix("_"), out, args, given)
