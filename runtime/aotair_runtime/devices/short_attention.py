"""Attention over sequences of about a hundred to some hundred tokens on the CPU, in float32: two products of batches
and a softmax.

Torch's flash kernel never holds all scores. Where those of many heads fit in a cache, that is the slower way, most of
all at 100 to 128 tokens; below 90 tokens the calls cost more than they save (`benchmarks.attention`).
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .results import meet

_LEAST, _MOST = 1 << 13, 1 << 17  # scores of a head
_AT_A_TIME = 1 << 20  # numbers that are held: 4 MiB
_MINUS_INFINITY = -float("inf")
_DEFAULTS = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
_PLACES = ("attn_mask", "dropout_p", "is_causal")


def prepared(args: Sequence[Any], kwargs: Mapping[str, Any], target: Tensor) -> "ShortAttention | None":
    """`aten::scaled_dot_product_attention` of these arguments into `target`; None where torch's kernel is to be called:
    for other dtypes, causal masks, heads that share keys, and sequences that are shorter or longer."""
    if len(args) < 3:
        return None
    query, key, value = args[:3]
    given = _DEFAULTS | dict(zip(_PLACES, args[3:])) | dict(kwargs)
    mask = given["attn_mask"]
    if given["dropout_p"] or given["is_causal"] or given["enable_gqa"] or not _fit(query, key, value, target):
        return None
    size = (*query.shape[:3], key.shape[2])
    if not _LEAST <= size[2] * size[3] <= _MOST or not (mask is None or _is_mask(mask, size)):
        return None
    if any(meet(target, one) for one in (query, key, value, mask) if one is not None):
        return None  # it would read what it has written
    scale = query.shape[3] ** -0.5 if given["scale"] is None else float(given["scale"])
    return ShortAttention((query, key, value, target), None if mask is None else _whole(mask), scale)


def _fit(query: Tensor, key: Tensor, value: Tensor, target: Tensor) -> bool:
    if any(one.dtype != torch.float32 or one.dim() != 4 or not one.numel() for one in (query, key, value, target)):
        return False
    (batch, heads, rows, width), (keys, out) = query.shape, value.shape[2:]
    alike = key.shape == (batch, heads, keys, width) and value.shape == (batch, heads, keys, out)
    return alike and target.shape == (batch, heads, rows, out)


def _is_mask(mask: Tensor, size: Sequence[int]) -> bool:
    """Whether it speaks of each key; of the other dimensions it may be the same for all."""
    fits = mask.dim() <= 4 and mask.dtype in (torch.bool, torch.float32) and mask.shape[-1:] == (size[3],)
    return fits and all(one in (1, whole) for one, whole in zip(mask.shape[::-1], size[::-1]))


def _whole(mask: Tensor) -> Tensor:
    """A mask in four dimensions, each number of it once."""
    mask = mask[(None,) * (4 - mask.dim())]
    return mask[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in mask.stride()[:3])]


class ShortAttention:
    """`target = softmax(query @ key.T * scale + mask) @ value`. Rows of which the mask leaves nothing are 0, as torch's
    kernel has them.

    query: (batch, heads, rows, width); key, value: (batch, heads, keys, …). Each call allocates what some heads need at
    a time, their scores and copies of what these are made of: at most 4 MiB, or what one head needs."""

    def __init__(self, tensors: Sequence[Tensor], mask: Tensor | None, scale: float):
        self._mask = mask
        self._scale = torch.tensor(scale, dtype=torch.float32, device="cpu")
        (batch, heads, rows, width), (keys, out) = tensors[0].shape, tensors[2].shape[2:]
        most = _AT_A_TIME // ((rows + keys) * (width + out) + rows * keys)
        some = heads if most >= heads else _divisor(heads, most)
        items = _divisor(batch, most // heads)
        self._size = (items, some, rows, keys, width, out)
        self._parts = list[tuple[Tensor, Tensor, Tensor, Tensor, tuple[int, int]]]()
        for at in itertools.product(range(0, batch, items), range(0, heads, some)):
            q, k, v, target = (_some(one, at, self._size) for one in tensors)
            self._parts.append((q, k, v, target, at))

    def __call__(self) -> None:
        items, some, rows, keys, width, out = self._size
        query, scores = _empty(items, some, rows, width), _empty(items, some, rows, keys)
        result = _empty(items, some, rows, out)
        batched, summed, made = (one.flatten(0, 1) for one in (query, scores, result))
        bias, alive = self._masked()
        for q, k, v, target, at in self._parts:
            torch.mul(q, self._scale, out=query)
            torch.bmm(batched, k.contiguous().flatten(0, 1).transpose(1, 2), out=summed)
            if bias is not None:
                scores.add_(_some(bias, at, self._size))
            torch.softmax(summed, -1, out=summed)
            torch.bmm(summed, v.contiguous().flatten(0, 1), out=made)
            if alive is None:
                target.copy_(result)
            else:
                torch.mul(result, _some(alive, at, self._size), out=target)

    def _masked(self) -> tuple[Tensor | None, Tensor | None]:
        """What is added to the scores, and a factor for each row: 0 where the mask leaves nothing, and nothing is added
        then, else 1."""
        mask = self._mask
        if mask is None:
            return None, None
        if mask.dtype == torch.bool:
            kept = mask.to(torch.float32)
            alive = kept.amax(3, True)
            return torch.sub(kept, alive).log1p_(), alive  # 0, or minus infinity
        dead = mask.amax(3, True) == _MINUS_INFINITY
        return mask.masked_fill(dead, 0.0), dead.logical_not().to(torch.float32)


def _empty(*size: int) -> Tensor:
    return torch.empty(size, dtype=torch.float32, device="cpu")


def _some(whole: Tensor, at: tuple[int, int], size: Sequence[int]) -> Tensor:
    """From an item and a head on as many as are taken at a time; of a mask, what it says of them."""
    (item, head), (items, heads) = at, size[:2]
    if len(whole) > 1:
        whole = whole[item : item + items]
    return whole[:, head : head + heads] if whole.shape[1] > 1 else whole


def _divisor(whole: int, most: int) -> int:
    """The greatest divisor that is not above `most`, which may be 0."""
    return next(one for one in range(max(1, min(whole, most)), 0, -1) if not whole % one)
