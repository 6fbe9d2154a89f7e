"""`torch.ops.air.all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `stage_input`, `stage_output`: what the
ranks of a group do together.

In an artifact the group is an axis of the mesh (`GroupArg`); a load puts the name of a group in its place that it has
joined (`groups`). Each op is done when it returns, or stands in the stream that captures it.
"""

from typing import Any

import torch
from torch import Tensor

from .groups import group, members

REDUCTIONS = ("sum", "max", "min", "product")
_library = torch.library.Library("air", "FRAGMENT")


def _reduction(name: str) -> str:
    if name not in REDUCTIONS:
        raise ValueError(f"no such reduction: {name!r:.40}; there are {', '.join(REDUCTIONS)}")
    return name


def _all_reduce(x: Tensor, reduce: str, name: str) -> Tensor:
    return _all_reduce_(x.clone(memory_format=torch.contiguous_format), reduce, name)


def _all_reduce_(x: Tensor, reduce: str, name: str) -> Tensor:
    group(name).all_reduce(x, _reduction(reduce))
    return x


def _all_reduce_out(x: Tensor, reduce: str, name: str, *, out: Tensor) -> Tensor:
    return _all_reduce_(_as(out, x.shape, x).copy_(x), reduce, name)


def _all_gather(x: Tensor, ranks: int, name: str) -> Tensor:
    return _all_gather_out(x, ranks, name, out=x.new_empty(_longer(x, ranks)))


def _all_gather_out(x: Tensor, ranks: int, name: str, *, out: Tensor) -> Tensor:
    members(ranks, name).all_gather(_as(out, _longer(x, ranks), x), x.contiguous())
    return out


def _reduce_scatter(x: Tensor, reduce: str, ranks: int, name: str) -> Tensor:
    return _reduce_scatter_out(x, reduce, ranks, name, out=x.new_empty(_shorter(x, ranks)))


def _reduce_scatter_out(x: Tensor, reduce: str, ranks: int, name: str, *, out: Tensor) -> Tensor:
    mine = _as(out, _shorter(x, ranks), x)
    members(ranks, name).reduce_scatter(mine, x.contiguous(), _reduction(reduce))
    return out


def _all_to_all(x: Tensor, ranks: int, name: str) -> Tensor:
    return _all_to_all_out(x, ranks, name, out=x.new_empty(x.shape))


def _all_to_all_out(x: Tensor, ranks: int, name: str, *, out: Tensor) -> Tensor:
    _shorter(x, ranks)
    members(ranks, name).all_to_all(_as(out, x.shape, x), x.contiguous())
    return out


def _stage_input(x: Tensor, ranks: int, name: str) -> Tensor:
    return _stage_input_out(x, ranks, name, out=x.new_empty(x.shape))


def _stage_input_out(x: Tensor, ranks: int, name: str, *, out: Tensor) -> Tensor:
    """What the rank before made, or `x` on the first. All hear each rank in turn (`_stage_output`), and what one hears
    last before its turn is that."""
    found = members(ranks, name)
    _as(out, x.shape, x).copy_(x)
    for root in range(found.number):
        found.broadcast(out, root)
    return out


def _stage_output(x: Tensor, ranks: int, name: str) -> Tensor:
    return _stage_output_out(x, ranks, name, out=x.new_empty(x.shape))


def _stage_output_out(x: Tensor, ranks: int, name: str, *, out: Tensor) -> Tensor:
    """What the last rank made: each says in its turn what it has, and hears the ones after it."""
    found = members(ranks, name)
    _as(out, x.shape, x).copy_(x)
    for root in range(found.number, ranks):
        found.broadcast(out, root)
    return out


def _as(out: Tensor, shape: Any, x: Tensor) -> Tensor:
    """`out`, which has to be of that shape, and of the dtype of x."""
    if tuple(out.shape) != tuple(shape) or out.dtype != x.dtype or not out.is_contiguous():
        raise ValueError(f"the result is {x.dtype} {list(shape)}, and out is {out.dtype} {list(out.shape)}")
    return out


def _longer(x: Tensor, ranks: int) -> list[int]:
    if x.dim() < 1 or ranks < 1:
        raise ValueError(f"{ranks} parts of a tensor of {x.dim()} dimensions are not one behind the other")
    return [x.shape[0] * ranks, *x.shape[1:]]


def _shorter(x: Tensor, ranks: int) -> list[int]:
    if x.dim() < 1 or ranks < 1 or x.shape[0] % ranks:
        raise ValueError(f"{list(x.shape)} cannot be cut into {ranks} equal parts")
    return [x.shape[0] // ranks, *x.shape[1:]]


def _shape_out(*given: Any, out: Tensor) -> Tensor:
    return out


# By name: what stands between the tensor and the group, the kernels, and the shape of the result.
_OPS: tuple[tuple[str, str, Any, Any, Any], ...] = (
    ("all_reduce", "str reduce, ", _all_reduce, _all_reduce_out, lambda x, reduce, name: x.new_empty(x.shape)),
    ("all_gather", "int ranks, ", _all_gather, _all_gather_out, lambda x, ranks, name: x.new_empty(_longer(x, ranks))),
    (
        "reduce_scatter",
        "str reduce, int ranks, ",
        _reduce_scatter,
        _reduce_scatter_out,
        lambda x, reduce, ranks, name: x.new_empty(_shorter(x, ranks)),
    ),
    ("all_to_all", "int ranks, ", _all_to_all, _all_to_all_out, lambda x, ranks, name: x.new_empty(x.shape)),
    ("stage_input", "int ranks, ", _stage_input, _stage_input_out, lambda x, ranks, name: x.new_empty(x.shape)),
    ("stage_output", "int ranks, ", _stage_output, _stage_output_out, lambda x, ranks, name: x.new_empty(x.shape)),
)
_KEYS = ("CPU", "CUDA", "PrivateUse1")


def _define() -> None:
    for name, more, kernel, into, shape in _OPS:
        _library.define(f"{name}(Tensor x, {more}str group) -> Tensor")
        _library.define(f"{name}.out(Tensor x, {more}str group, *, Tensor(a!) out) -> Tensor(a!)")
        for key in _KEYS:
            _library.impl(name, kernel, key)
            _library.impl(f"{name}.out", into, key)
        _library.impl(name, shape, "Meta")
        _library.impl(f"{name}.out", _shape_out, "Meta")
    _library.define("all_reduce_(Tensor(a!) x, str reduce, str group) -> Tensor(a!)")
    for key in _KEYS:
        _library.impl("all_reduce_", _all_reduce_, key)
    _library.impl("all_reduce_", lambda x, reduce, name: x, "Meta")


_define()
