"""What does an instruction do, as steps? What is no small op, or is called with what the library does not take, has
none, and is called as ever: numbers of other dtypes, memory that is written while it is read in another order, rows
that are longer than a thread holds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import attention, elementwise, images, products, recurrent, rows
from .written import Steps

_Make = Callable[[str, Tensor, Sequence[Any], dict[str, Any]], Steps | None]
# By op, without the underscore of those that write over their first argument: what writes it down, and which of its
# arguments have to be tensors, whatever its schema takes.
_MAKERS: Mapping[str, tuple[_Make, tuple[int, ...]]] = {
    "copy": (elementwise.copy, (1,)),
    "gelu": (elementwise.of_one, (0,)),
    **dict.fromkeys(elementwise.OF_ONE, (elementwise.of_one, (0,))),
    **dict.fromkeys(elementwise.OF_TWO, (elementwise.of_two, ())),
    "pow": (elementwise.power, (0,)),
    "cat": (elementwise.cat, ()),
    "where": (elementwise.where, (0, 1, 2)),
    "index_select": (rows.index_select, (0, 2)),
    "index_copy": (rows.index_copy, (0, 2, 3)),
    "mean": (rows.reduced, (0,)),
    "sum": (rows.reduced, (0,)),
    "_softmax": (rows.softmax, (0,)),
    "layer_norm": (rows.layer_norm, (0, 2)),
    "native_layer_norm": (rows.layer_norm, (0, 2)),
    "group_norm": (images.group_norm, (0,)),
    "scaled_dot_product_attention": (attention.attention, (0, 1, 2)),
}
_OUT_NAMES = frozenset({"out", "tokens"})
_OUTS: Mapping[str, tuple[Callable[[Sequence[Any], Mapping[str, Any]], Steps | None], tuple[int, ...]]] = {
    "air::dynamic_quant": (rows.dynamic_quant, (0,)),
    "air::linear_int8": (products.linear_int8, (0, 1, 2)),
    "air::paged_attention": (attention.paged_attention, (0, 1, 2, 3, 4, 5)),
}

# With several results, each of which has a place or none.
_OF_SEVERAL: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any], Sequence[Tensor | None]], Steps | None]] = {
    "aten::lstm": recurrent.lstm,
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
    if name in _OF_SEVERAL:
        return None if targets is None else _OF_SEVERAL[name](args, kwargs, targets)
    if name in _OUTS:
        write, places = _OUTS[name]
        fits = targets is None and kwargs.keys() & _OUT_NAMES and _are_tensors(args, places)
        return write(args, kwargs) if fits else None
    own, given = name.removeprefix("aten::"), dict(kwargs)
    make, places = _MAKERS.get(own.removesuffix("_"), (None, ()))
    if make is None or own == name or not _are_tensors(args, places):
        return None
    if targets is not None:
        out = targets[0] if targets and not any(one is not None for one in targets[1:]) else None
    else:
        out = args[0] if own.endswith("_") and args else given.pop("out", None)
    if not isinstance(out, Tensor) or not out.numel():
        return None
    return make(own.removesuffix("_"), out, args, given)


def _are_tensors(args: Sequence[Any], places: Sequence[int]) -> bool:
    return all(place < len(args) and isinstance(args[place], Tensor) for place in places)
