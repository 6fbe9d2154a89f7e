"""Attention over whole sequences and over caches, paged or not: the arithmetic of `fused_infer_attention`.

Source: the documentation of torch_npu's `npu_fused_infer_attention_score` and `npu_fused_infer_attention_score_v2`
(aclnnFusedInferAttentionScore, V2 to V5).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..registry import Unserved

# An `input_layout` is one of these, or two joined by "_": that of the inputs and that of the result. B is the batch, S
# the sequence, N the heads, D their size, H = N * D, and T all tokens of all sequences, one after the other.
_TO_BNSD: dict[str, Callable[[Tensor, int], Tensor]] = {
    "BNSD": lambda x, heads: x,
    "BSND": lambda x, heads: x.transpose(1, 2),
    "BSH": lambda x, heads: x.unflatten(-1, (heads, -1)).transpose(1, 2),
    "TND": lambda x, heads: x.transpose(0, 1).unsqueeze(0),
    "NTD": lambda x, heads: x.unsqueeze(0),
    "NSD": lambda x, heads: x.unsqueeze(0),
}
_FROM_BNSD: dict[str, Callable[[Tensor], Tensor]] = {
    "BNSD": lambda x: x,
    "BSND": lambda x: x.transpose(1, 2),
    "BSH": lambda x: x.transpose(1, 2).flatten(2),
    "NBSD": lambda x: x.transpose(0, 1),
    "TND": lambda x: x[0].transpose(0, 1),
    "NTD": lambda x: x[0],
    "NSD": lambda x: x[0],
}
_LAYOUTS = (*_TO_BNSD, "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "NTD_TND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "TND_NTD")
_COMPRESSED = (2048, 2048)
ALL = 2**31 - 1  # the default of pre_tokens and next_tokens: nothing is too far


@dataclass(frozen=True)
class Call:
    """The arguments of either version under one name."""

    query: Tensor
    key: Tensor
    value: Tensor
    layout: str
    heads: int
    kv_heads: int
    scale: float
    mask: Tensor | None
    sparse_mode: int
    window: tuple[int, int]
    lengths: Sequence[int] | None
    kv_lengths: Sequence[int] | None
    block_table: Tensor | None
    block_size: int
    inner_precise: int
    query_rope: Tensor | None
    key_rope: Tensor | None
    lse: bool

    @property
    def tokens(self) -> bool:
        """Do the sequences lie one after the other, and are their lengths cumulative?"""
        return self.layout.partition("_")[0] in ("TND", "NTD")

    @property
    def single(self) -> bool:
        """Does each sequence have one query, for which the device has no sparse modes?"""
        rows = _TO_BNSD[_layouts(self.layout)[0]](self.query, self.heads).shape[2]
        return rows == 1 and not self.tokens and self.query_rope is None


def _layouts(layout: str) -> tuple[str, str]:
    """The layouts of the inputs and of the result."""
    if layout not in _LAYOUTS:
        raise Unserved(f"input_layout is one of {', '.join(_LAYOUTS)}, not {layout!r}")
    first, _, second = layout.partition("_")
    return first, second or first


def _value_size(call: Call) -> int:
    """The head size of value, whose heads a three-dimensional cache holds side by side."""
    if call.block_table is None:
        return _TO_BNSD[_layouts(call.layout)[0]](call.value, call.kv_heads).shape[-1]
    if call.value.dim() not in (3, 4):
        raise Unserved(f"block_table with a value of {call.value.dim()} dimensions")
    return call.value.shape[-1] // (call.kv_heads if call.value.dim() == 3 else 1)


def outputs(call: Call) -> tuple[Tensor, Tensor]:
    """Zeros of the shapes of the results: attention like query with the head size of value, and the log-sum-exp."""
    first, second = _layouts(call.layout)
    batch, heads, rows, _ = _TO_BNSD[first](call.query, call.heads).shape
    wide = call.query.new_empty((batch, heads, rows, _value_size(call)), device="meta")
    lse = ((rows, heads, 1) if call.tokens else (batch, heads, rows, 1)) if call.lse else (0,)
    return call.query.new_zeros(_FROM_BNSD[second](wide).shape), call.query.new_zeros(lse, dtype=torch.float32)


def _hidden(call: Call, batch: slice, rows: int, columns: int) -> tuple[Tensor | None, bool]:
    """What queries may not see: a mask that spreads over (batch, heads, rows, columns), or by True a causal one."""
    if call.sparse_mode in (0, 1) or (call.single and call.mask is None):
        return _full_mask(call, batch, rows, columns), False
    if call.mask is None or call.mask.shape[-2:] != _COMPRESSED:
        raise ValueError(f"sparse_mode={call.sparse_mode} takes an atten_mask of 2048 x 2048, the upper triangle")
    if call.single and call.sparse_mode == 2:
        raise Unserved("sparse_mode=2 with a single query, where the device ignores it")
    diagonal = columns - rows if call.sparse_mode == 3 else 0
    if diagonal >= columns - 1:
        return None, False
    if diagonal == 0:
        return None, True
    return torch.ones(rows, columns, dtype=torch.bool, device=call.query.device).triu(diagonal + 1), False


def _full_mask(call: Call, batch: slice, rows: int, columns: int) -> Tensor | None:
    """The part of atten_mask for these sequences: it is (queries, keys), (batch, queries, keys), (batch, 1, queries,
    keys), or (batch, keys) where each sequence has a single query."""
    if call.mask is None:
        if call.sparse_mode == 1 and not call.single:
            raise ValueError("sparse_mode=1 takes an atten_mask")
        return None
    before, after = call.window
    if call.tokens:
        raise Unserved(f"atten_mask of sparse_mode={call.sparse_mode} with input_layout={call.layout!r}")
    if call.sparse_mode == 0 and not call.single and min(before, after) < max(rows, columns):
        raise Unserved(f"pre_tokens={before}, next_tokens={after}, where they hide something")
    if call.mask.dtype not in (torch.bool, torch.int8, torch.uint8):
        raise Unserved(f"atten_mask of {call.mask.dtype}: bool, int8 or uint8, true where a key is hidden")
    mask = call.mask.bool()
    if mask.dim() == 2:
        mask = mask[:, None, None] if call.single else mask[None, None]
    elif mask.dim() == 3:
        mask = mask[:, None]
    mask = (mask if mask.shape[0] == 1 else mask[batch])[..., :rows, :columns]
    if mask.shape[-2:] != (rows, columns):
        raise ValueError(f"atten_mask {tuple(call.mask.shape)} is too small for {rows} queries and {columns} keys")
    return mask


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, hidden: Tensor | None, causal: bool) -> Tensor:
    """torch's own attention, in the dtype of the inputs; zeros for a query that sees nothing."""
    out = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        None if hidden is None else ~hidden,
        is_causal=causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out if hidden is None else out.masked_fill(hidden.all(-1, keepdim=True), 0)


def _log_sum_exp(query: Tensor, key: Tensor, scale: float, hidden: Tensor | None, causal: bool) -> Tensor:
    """(batch, heads, queries, 1) in float32; infinite for a query that sees nothing."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query.float() @ key.float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    result = scores.logsumexp(-1, keepdim=True)
    return torch.where(result == -torch.inf, torch.inf, result)


def _results(call: Call, batch: slice, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Attention and log-sum-exp of these sequences, as (batch, heads, queries, ...)."""
    if (query.shape[1], key.shape[1]) != (call.heads, call.kv_heads):
        raise ValueError(f"{call.heads} heads and {call.kv_heads}, not {query.shape[1]} and {key.shape[1]}")
    hidden, causal = _hidden(call, batch, query.shape[2], key.shape[2])
    if not key.shape[2]:
        return query.new_zeros((*query.shape[:3], value.shape[-1])), query.new_full((*query.shape[:3], 1), torch.inf)
    lse = _log_sum_exp(query, key, call.scale, hidden, causal) if call.lse else query.new_zeros(0)
    return _attend(query, key, value, call.scale, hidden, causal), lse


def _pages(call: Call, cache: Tensor, number: int, length: int) -> Tensor:
    """(1, heads, length, size): what block_table says of a cache (blocks, block_size, heads * size) or (blocks, heads,
    block_size, size)."""
    size = cache.shape[1 if cache.dim() == 3 else 2]
    if size != call.block_size:
        raise ValueError(f"block_size={call.block_size}, the cache has blocks of {size}")
    assert call.block_table is not None
    blocks = cache[call.block_table[number, : -(-length // size)].long()]
    if blocks.dim() == 3:
        blocks = blocks.unflatten(-1, (call.kv_heads, -1)).transpose(1, 2)
    return blocks.transpose(0, 1).flatten(1, 2)[None, :, :length]


def _bounds(lengths: Sequence[int] | None, batch: int, full: int, cumulative: bool) -> list[tuple[int, int]]:
    """Where each sequence starts and ends."""
    if lengths is None:
        return [(0, full)] * batch
    if cumulative:
        return list(zip([0, *lengths[:-1]], lengths, strict=True))
    return [(0, length) for length in (list(lengths) * batch if len(lengths) == 1 else lengths)[:batch]]


def _with_rope(x: Tensor, rope: Tensor | None, layout: str, heads: int) -> Tensor:
    x = _TO_BNSD[layout](x, heads)
    return x if rope is None else torch.cat((x, _TO_BNSD[layout](rope, heads)), -1)


def _dense(call: Call) -> tuple[Tensor, Tensor]:
    """Keys and values as (batch, heads, length, size)."""
    layout, _ = _layouts(call.layout)
    return _with_rope(call.key, call.key_rope, layout, call.kv_heads), _TO_BNSD[layout](call.value, call.kv_heads)


def _sequences(call: Call, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """For each sequence its keys and values as (1, heads, length, size)."""
    paged = call.block_table is not None
    key, value = (call.key, call.value) if paged else _dense(call)
    full = 0 if paged else key.shape[2]
    for number, (start, stop) in enumerate(_bounds(call.kv_lengths, batch, full, call.tokens and not paged)):
        if paged:
            keys = [_pages(call, part, number, stop) for part in (key, call.key_rope) if part is not None]
            its_key, its_value = torch.cat(keys, -1), _pages(call, value, number, stop)
        else:
            row = slice(0, 1) if call.tokens else slice(number, number + 1)
            its_key, its_value = key[row, :, start:stop], value[row, :, start:stop]
        if its_key.shape[2] != stop - start:
            raise ValueError(f"sequence {number} has {its_key.shape[2]} keys, its length says {stop - start}")
        yield its_key, its_value


def _one_by_one(call: Call, query: Tensor) -> tuple[Tensor, Tensor]:
    """`_results` of each sequence, with what it really has of queries and keys; the rest is zero."""
    out = query.new_zeros((*query.shape[:3], _value_size(call)))
    lse = query.new_full((*query.shape[:3], 1), torch.inf, dtype=torch.float32)
    assert call.lengths is not None or not call.tokens
    batch = query.shape[0] if call.lengths is None or not call.tokens else len(call.lengths)
    places = _bounds(call.lengths, batch, query.shape[2], call.tokens)
    for number, ((start, stop), (key, value)) in enumerate(zip(places, _sequences(call, batch), strict=True)):
        row = slice(0, 1) if call.tokens else slice(number, number + 1)
        here = (row, slice(None), slice(start, stop))
        if query[here].shape[2] != stop - start:
            raise ValueError(f"sequence {number} has {query[here].shape[2]} queries, its length says {stop - start}")
        part, its_lse = _results(call, slice(number, number + 1), query[here], key, value)
        out[here] = part
        if call.lse:
            lse[here] = its_lse
    return out, lse


def check(call: Call) -> None:
    """Is it served, whatever the lengths are?"""
    _layouts(call.layout)
    for name in ("query", "key", "value", "query_rope", "key_rope"):
        dtype = getattr(getattr(call, name), "dtype", call.query.dtype)
        if dtype not in (torch.float16, torch.bfloat16, torch.float32) or dtype != call.query.dtype:
            raise Unserved(f"{name} of {dtype}: all are alike, float16, bfloat16 or float32")
    if call.sparse_mode not in (0, 1, 2, 3):
        raise Unserved(f"the host kernel of attention knows no sparse_mode={call.sparse_mode}", expected="0 to 3")
    if call.inner_precise not in ((0, 1) if call.single else (0, 1, 2, 3)):
        raise Unserved(f"inner_precise={call.inner_precise}: 0 to 3, or 0 and 1 for a single query")
    if (call.query_rope is None) != (call.key_rope is None):
        raise ValueError("query_rope and key_rope come together")


def _check_lengths(call: Call) -> None:
    if call.tokens and (call.lengths is None or call.kv_lengths is None):
        raise ValueError(f"input_layout={call.layout!r} takes the lengths of the queries and of the keys")
    if call.block_table is not None and call.kv_lengths is None:
        raise ValueError("block_table takes the lengths of the keys")


def run(call: Call) -> tuple[Tensor, Tensor]:
    """Both results. Whole sequences go to torch at once, sequences with lengths of their own one by one."""
    check(call)
    _check_lengths(call)
    first, second = _layouts(call.layout)
    query = _with_rope(call.query, call.query_rope, first, call.heads)
    if call.lengths is None and call.kv_lengths is None:
        out, lse = _results(call, slice(None), query, *_dense(call))
    else:
        out, lse = _one_by_one(call, query)
    out = _FROM_BNSD[second](out).contiguous()
    if not call.lse:
        return out, query.new_zeros(0, dtype=torch.float32)
    return out, (lse[0].transpose(0, 1) if call.tokens else lse).float().contiguous()
