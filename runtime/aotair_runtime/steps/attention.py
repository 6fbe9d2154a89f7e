"""Which attentions are made faster than by torch: as steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..devices import attention as paged
from . import library
from .written import FLOATS, TOGETHER, TYPES, WIDTH, Lies, Steps, are_apart, written

_ATTENTION, _PAGED_ATTENTION = 64, 65
# By `benchmarks.joined`: many queries, for which keys are turned, over not too many keys; or of few queries a few
# scores for each head, and more where there is one query, below which torch's kernel costs more than it saves.
_MANY, _LONGEST, _SCORES, _OF_ONE = 6, 1 << 13, 128, 1 << 10
_PLAIN = (int, float, bool, type(None))
_FEW = 4  # queries: of halves, torch's kernel for so few is slow over keys of any number


def attention(_: str, out: Tensor, args: Sequence[Any], given: dict[str, Any]) -> Steps | None:
    """`aten::scaled_dot_product_attention` over not too many keys, or with few scores for each head."""
    if len(args) not in (3, 4):
        return None
    query, keys, values, mask = *args[:3], args[3] if len(args) == 4 else given.pop("attn_mask", None)
    scale, grouped = given.pop("scale", None), given.pop("enable_gqa", False)
    if any(type(value) not in _PLAIN or value for value in given.values()) or type(scale) not in _PLAIN:
        return None
    if not isinstance(mask, (Tensor, type(None))) or any(
        one.dim() != 4 or one.stride(3) != 1 for one in (query, keys, values, out)
    ):
        return None
    (batch, heads, rows, width), (groups, tokens, wide) = query.shape, values.shape[1:]
    share = heads // groups if groups else 0
    fits = keys.shape == (batch, groups, tokens, width) and out.shape == (batch, heads, rows, wide)
    fits = fits and share * groups == heads and (share == 1 or grouped)
    fits = fits and tokens * rows > 0 and _pays(rows, tokens, query.itemsize == 2)
    alike = query.dtype in FLOATS and all(one.dtype == query.dtype for one in (keys, values, out))
    if not fits or not alike or max(width, wide) > WIDTH or min(width, wide) < 1:
        return None
    read = [query, keys, values]
    if mask is not None:
        try:
            read.append(mask.expand(batch, heads, rows, tokens))
        except RuntimeError:
            return None
        if mask.dtype not in (torch.bool, query.dtype):
            return None
    if not are_apart(out, read):
        return None
    lies = [Lies(one.data_ptr(), one.stride(), TYPES[one.dtype]) for one in (out, *read)]
    number = width**-0.5 if scale is None else float(scale)
    sizes = (batch, heads, rows, width, wide, tokens)
    return Steps(written(_ATTENTION, 4, sizes, lies, number, (share, 0)), 1)


def _pays(rows: int, tokens: int, halves: bool) -> bool:
    if rows >= _MANY:
        return tokens <= _LONGEST and library.is_wide()
    return tokens * rows < (_OF_ONE if rows == 1 else _SCORES) or (halves and rows <= _FEW)


def paged_attention(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Steps | None:
    """`air::paged_attention.out` with one token for each sequence."""
    try:
        out = paged.check(*args, **kwargs)
    except (ValueError, TypeError):
        return None  # the op says what does not fit
    query, keys, values, table, mask, lengths, scale, *scales = args
    batch, heads, tokens, width = query.shape
    groups, block = keys.shape[1] // width, mask.shape[3] // table.shape[1]
    share, wide = heads // groups, values.shape[1] // groups
    fits = all(one.dtype in (torch.int64, torch.int32) for one in (table, lengths)) and query.dtype in FLOATS
    fits = fits and tokens == 1 and share <= TOGETHER and max(width, wide) <= WIDTH and out.numel() > 0
    fits = fits and (share < _MANY or library.is_wide())
    fits = fits and query.stride(3) == keys.stride(1) == values.stride(1) == out.stride(3) == 1
    read = (query, keys, values, table, mask, lengths)
    if not fits or any(one is not None for one in scales) or not are_apart(out, read):
        return None
    tensors = (out[:, :, 0], query[:, :, 0], keys, values, table, mask[:, 0, 0], lengths)
    lies = [Lies(one.data_ptr(), one.stride()[:2], TYPES[one.dtype]) for one in tensors]
    sizes = (batch, groups, share, width, wide, mask.shape[3])
    return Steps(written(_PAGED_ATTENTION, 1, sizes, lies, float(scale), (block, keys.shape[0] // block)), 1)
