"""Norms of groups of channels, of images in channels-last, as steps; and the activation that follows one."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..devices.results import has_no_gaps, meet
from . import library
from .join import Named
from .written import FLOATS, HEAD, OPERAND, ROW, TYPES, Lies, Steps, in_order, written

_GROUP_NORM = 112
_MOST_HALVES = 1 << 19  # numbers of two bytes, above which torch's kernel is faster: `benchmarks.joined`
_NOWHERE = Lies(0, (), 0)
_SILU = torch.ops.aten.silu_.default


def group_norm(_: str, out: Tensor, args: Sequence[Any], given: dict[str, Any]) -> Steps | None:
    """`aten::group_norm` of images in channels-last, of which each row of channels is held at once."""
    x, groups, weight, bias, eps = [*args, *(None, None, 1e-5)[max(0, len(args) - 2) :]][:5]
    if given or type(groups) is not int or type(eps) not in (int, float) or not library.is_wide():
        return None
    if not _are_images(x, out) or not 0 < groups <= x.shape[1] <= ROW or x.shape[1] % groups:
        return None
    factors = [one for one in (weight, bias) if one is not None]
    if not all(isinstance(one, Tensor) and _is_of_channels(one, x) for one in factors):
        return None
    if not in_order(out, [x]) or any(meet(out, one) for one in factors):
        return None
    lies = [_NOWHERE if one is None else Lies(one.data_ptr(), (), TYPES[one.dtype]) for one in (out, x, weight, bias)]
    images, channels, height, width = x.shape
    return Steps(written(_GROUP_NORM, 1, (images, height * width, channels, groups), lies, float(eps), (0, 0)), 1)


def _are_images(x: Tensor, out: Tensor) -> bool:
    if x.dim() != 4 or x.dtype not in FLOATS or out.shape != x.shape or out.dtype != x.dtype:
        return False
    if x.itemsize == 2 and x.numel() > _MOST_HALVES:
        return False
    return all(one.is_contiguous(memory_format=torch.channels_last) for one in (x, out))


def _is_of_channels(one: Tensor, x: Tensor) -> bool:
    return one.shape == x.shape[1:2] and one.dtype in FLOATS and one.is_contiguous()


def followed(before: Named, call: Callable[[], object]) -> Named | None:
    """A norm that also does what the call after it does: SILU over all of its result; None where that is no such."""
    if before.steps is None or type(call) is not functools.partial or call.func is not _SILU or len(call.args) != 1:
        return None
    steps = None if call.keywords else _with_silu(before.steps, call.args[0])
    return None if steps is None else Named(functools.partial(_both, before.call, call), before.name, steps)


def _with_silu(steps: Steps, result: object) -> Steps | None:
    op, dims, operands, images, places, channels, *rest, is_followed, other = HEAD.unpack_from(steps.data)
    if (op, steps.count, is_followed) != (_GROUP_NORM, 1, 0) or not isinstance(result, Tensor):
        return None
    address, *_, kind = OPERAND.unpack_from(steps.data, HEAD.size)
    whole = result.numel() == images * places * channels and has_no_gaps(result)
    if not whole or result.data_ptr() != address or TYPES.get(result.dtype) != kind:
        return None
    head = HEAD.pack(op, dims, operands, images, places, channels, *rest, 1, other)
    return Steps(head + steps.data[HEAD.size :], 1, steps.kept)


def _both(first: Callable[[], object], second: Callable[[], object]) -> None:
    first()
    second()
