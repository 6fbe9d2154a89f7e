"""`torch.ops.air.paged_attention`: queries meet the keys and values of a cache where these lie, on the CPU.

How many tokens a sequence has is a number of the call, read by the kernel: what lies behind them is not read, and rows
that lie one after the other are not copied.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .results import check_out

_SCHEMA = (
    "(Tensor query, Tensor keys, Tensor values, Tensor table, Tensor mask, Tensor lengths, float scale, "
    "Tensor? key_scales=None, Tensor? value_scales=None"
)
_library = torch.library.Library("air", "FRAGMENT")


def paged_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    mask: Tensor,
    lengths: Tensor,
    scale: float,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """Scaled dot product attention over `softmax(scale · q kᵀ) v`, in which each sequence has blocks of a cache.

    query: (batch, heads, tokens, width); keys, values: (blocks * block, groups * width), a row for each token, of the
    dtype of query, where `heads` is a multiple of `groups`, or int8 with their scales beside them, float32 (blocks *
    block, groups), which they are times; table: (batch, columns) integers, the blocks of each sequence, one after the
    other; mask: bool (batch, 1, tokens, columns * block), what each query sees, at least one token, and none from
    `lengths` (batch,) on. Returns (batch, heads, tokens, width of values). Raises ValueError where the arguments do not
    fit each other, IndexError where a block does not exist.
    """
    given = (query, keys, values, table, mask, lengths, scale, key_scales, value_scales)
    return _into(query.new_empty(_size(given)), given)


def _paged_attention_out(*given: Any, out: Tensor) -> Tensor:
    """The same into `out`, which has its shape and dtype."""
    return _into(check(*given, out=out), given)


def _into(out: Tensor, given: Sequence[Any]) -> Tensor:
    table, mask, lengths = given[3:6]
    for number, blocks, length in sequences(table, lengths, mask.shape[3]):
        _attend(out, given, number, blocks, length)
    return out


def _attend(out: Tensor, given: Sequence[Any], number: int, blocks: list[int], length: int) -> None:
    """What a call makes of one of its sequences, which has its rows in these blocks."""
    query, keys, values, table, mask, _, scale, *scales = given
    heads, tokens, width = query.shape[1:]
    groups = keys.shape[1] // width
    share = heads // groups
    caches = (keys, values, *(one for one in scales if one is not None))
    rows = [rows_of(cache, blocks, mask.shape[3] // table.shape[1])[:length] for cache in caches]
    of_heads = [one.unflatten(1, (groups, -1)) for one in rows]
    own = [one.transpose(0, 1).unsqueeze(0) for one in _floats(of_heads, query.dtype)]
    # The heads of a group stand below each other as if they were more tokens: keys and values are not repeated.
    asked = query[number].reshape(1, groups, share * tokens, width)
    seen = mask[number : number + 1, :, :, :length]
    seen = seen.repeat(1, 1, share, 1) if tokens > 1 else seen.expand(1, 1, share, length)
    found = scaled_dot_product_attention(asked, own[0], own[1], attn_mask=seen, scale=scale)
    out[number].copy_(found.view(heads, tokens, -1))


def prepared(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], object] | None:
    """The op's call, whose arguments are looked at once; None where they do not fit each other: it then says so."""
    try:
        out = check(*args, **kwargs)
    except (ValueError, TypeError):
        return None
    return Step(out, args) if Step.takes(out, args) else functools.partial(_into, out, args)


class Step:
    """A call with one token for each sequence, whose memory stays where it is: all views of it are made once. A
    sequence of one block, which is what most have, then takes no more than the attention itself; the numbers are those
    of the op."""

    @staticmethod
    def takes(out: Tensor, given: Sequence[Any]) -> bool:
        query, keys, values, _, _, _, _, *scales = given
        return (
            query.shape[2] == 1
            and query.is_contiguous()
            and out.is_contiguous()
            and not any(one is not None for one in scales)
            and keys.is_contiguous()
            and values.is_contiguous()
        )

    def __init__(self, out: Tensor, given: Sequence[Any]):
        query, keys, values, self._table, mask, self._lengths, self._scale, *_ = given
        self._given, self._out, self._most = given, out, mask.shape[3]
        self._block = self._most // self._table.shape[1]
        groups = keys.shape[1] // query.shape[3]
        share = query.shape[1] // groups
        self._asked = query.view(len(query), 1, groups, share, -1).unbind()
        self._found = out.view(len(query), 1, groups, share, -1).unbind()
        self._seen = mask.expand(len(query), 1, share, self._most).unsqueeze(1).unbind()
        self._keys, self._values = (self._in_blocks(cache, groups) for cache in (keys, values))

    def _in_blocks(self, cache: Tensor, groups: int) -> tuple[Tensor, ...]:
        """(1, groups, block, width) of each block."""
        return cache.view(-1, 1, self._block, groups, cache.shape[1] // groups).transpose(2, 3).unbind()

    def __call__(self) -> None:
        for number, blocks, length in sequences(self._table, self._lengths, self._most):
            if length > self._block or not 0 <= blocks[0] < len(self._keys):
                _attend(self._out, self._given, number, blocks, length)
                continue
            found = scaled_dot_product_attention(
                self._asked[number],
                self._keys[blocks[0]].narrow(2, 0, length),
                self._values[blocks[0]].narrow(2, 0, length),
                attn_mask=self._seen[number].narrow(3, 0, length),
                scale=self._scale,
            )
            self._found[number].copy_(found)


def _floats(rows: Sequence[Tensor], kind: torch.dtype) -> Sequence[Tensor]:
    """Keys and values (length, groups, width); where scales (length, groups, 1) lie beside them, times these."""
    if len(rows) == 2:
        return rows
    return [(one.to(torch.float32) * scale).to(kind) for one, scale in zip(rows[:2], rows[2:], strict=True)]


def sequences(table: Tensor, lengths: Tensor, most: int) -> Iterator[tuple[int, list[int], int]]:
    """Each sequence of a call: its number, the blocks that hold it, and its length, which is 1 to `most`."""
    block = most // table.shape[1]
    for number, (blocks, said) in enumerate(zip(table.tolist(), lengths.tolist())):
        length = min(max(said, 1), most)
        yield number, blocks[: -(-length // block)], length


def rows_of(cache: Tensor, blocks: list[int], block: int) -> Tensor:
    """The rows of those blocks of a cache (rows, width), one after the other, which are copied only where they lie in
    several blocks."""
    count = cache.shape[0] // block
    for number in blocks:
        if not 0 <= number < count:
            raise IndexError(f"attention over a cache: block {number} of {count}")
    if len(blocks) == 1:
        return cache[blocks[0] * block : (blocks[0] + 1) * block]
    kept: Tensor = cache.unflatten(0, (count, block)).index_select(0, torch.tensor(blocks))
    return kept.flatten(0, 1)


def _size(given: Sequence[Any]) -> tuple[int, int, int, int]:
    """The shape of the result; raises ValueError where the arguments do not fit each other."""
    query, keys, values, table, mask, lengths, _, *scales = given
    fits = (query.dim(), keys.dim(), values.dim(), table.dim(), mask.dim(), lengths.dim()) == (4, 2, 2, 2, 4, 1)
    if fits:
        batch, heads, tokens, width = query.shape
        groups = keys.shape[1] // width if width else 0
        fits = groups > 0 and keys.shape[1] == groups * width and heads % groups == 0 and values.shape[1] % groups == 0
        fits = fits and keys.shape[0] == values.shape[0] and keys.dtype == values.dtype
        fits = fits and _scaled(keys, groups, scales, query.dtype)
        fits = fits and table.shape[0] == lengths.shape[0] == mask.shape[0] == batch and table.shape[1] > 0
        fits = fits and tuple(mask.shape[1:3]) == (1, tokens) and mask.dtype == torch.bool
        fits = fits and mask.shape[3] > 0 and mask.shape[3] % table.shape[1] == 0
        fits = fits and keys.shape[0] % (mask.shape[3] // table.shape[1]) == 0
        fits = fits and not any(one.is_floating_point() or one.is_complex() for one in (table, lengths))
        fits = fits and table.dtype != torch.bool and query.is_floating_point()
    if not fits:
        came = ", ".join(f"{one.dtype} {list(one.shape)}" for one in given if isinstance(one, Tensor))
        raise ValueError(
            "paged_attention takes a query (batch, heads, tokens, width), keys and values (rows, groups * width), a "
            "table (batch, columns), a mask (batch, 1, tokens, columns * block) and lengths (batch,), and for keys and "
            f"values of int8 scales (rows, groups) of float32: {came}"
        )
    return batch, heads, tokens, values.shape[1] // groups


def _scaled(keys: Tensor, groups: int, scales: Sequence[Tensor | None], kind: torch.dtype) -> bool:
    """Whether keys, and values like them, are of the dtype of query, or have the scales that int8 needs."""
    there = [one for one in scales if one is not None]
    if not there:
        return keys.dtype == kind
    wanted = (keys.shape[0], groups)
    alike = all(tuple(one.shape) == wanted and one.dtype == torch.float32 for one in there)
    return len(there) == 2 and alike and keys.dtype == torch.int8


def _shape(*given: Any) -> Tensor:
    query: Tensor = given[0]
    return query.new_empty(_size(given))


def check(*given: Any, out: Tensor) -> Tensor:
    """Gives `out`; raises ValueError where the arguments do not fit each other, or it is not as they make it."""
    return check_out("paged_attention", out, _size(given), given[0].dtype)


_library.define(f"paged_attention{_SCHEMA}) -> Tensor")
_library.define(f"paged_attention.out{_SCHEMA}, *, Tensor(a!) out) -> Tensor(a!)")
for _name, _kernel, _meta in (
    ("paged_attention", paged_attention, _shape),
    ("paged_attention.out", _paged_attention_out, check),
):
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _meta, "Meta")
OP = torch.ops.air.paged_attention.default
