"""`torch.ops.air.latent_attention`: queries meet the latents of a cache where these lie, on the CPU.

A layer of latent attention keeps one row of numbers for a token, from which the keys and values of all heads follow.
Queries that were multiplied with the heads' matrices before need neither: the rows are their keys, and their values.
"""

from typing import Any

import torch
from torch import Tensor

from .attention import rows_of, sequences
from .results import check_out

_SCHEMA = (
    "(Tensor query, Tensor query_rope, Tensor latents, Tensor ropes, Tensor table, Tensor mask, Tensor lengths, "
    "float scale"
)
_library = torch.library.Library("air", "FRAGMENT")


def latent_attention(
    query: Tensor,
    query_rope: Tensor,
    latents: Tensor,
    ropes: Tensor,
    table: Tensor,
    mask: Tensor,
    lengths: Tensor,
    scale: float,
) -> Tensor:
    """`softmax(scale · (query latentsᵀ + query_rope ropesᵀ)) latents`, in which each sequence has blocks of a cache.

    query: (batch, heads, tokens, rank); query_rope: (batch, heads, tokens, rope); latents: (blocks * block, rank) and
    ropes: (blocks * block, rope), a row for each token and for all heads, all of one dtype; table: (batch, columns)
    integers, the blocks of each sequence, one after the other; mask: bool (batch, 1, tokens, columns * block), what
    each query sees, at least one token, and none from `lengths` (batch,) on. Returns (batch, heads, tokens, rank), in
    the dtype of query; computed in float32 at least. Raises ValueError where the arguments do not fit each other,
    IndexError where a block does not exist.
    """
    given = (query, query_rope, latents, ropes, table, mask, lengths)
    _check(*given)
    return _into(torch.empty_like(query, memory_format=torch.contiguous_format), *given, scale)


def _latent_attention_out(*given: Any, out: Tensor) -> Tensor:
    """The same into `out`, which has the shape and dtype of query."""
    return _into(_shape_out(*given, out=out), *given)


def _into(
    out: Tensor,
    query: Tensor,
    query_rope: Tensor,
    latents: Tensor,
    ropes: Tensor,
    table: Tensor,
    mask: Tensor,
    lengths: Tensor,
    scale: float,
) -> Tensor:
    _, heads, tokens, rank = query.shape
    wide = torch.promote_types(query.dtype, torch.float32)
    block = mask.shape[3] // table.shape[1]
    for number, blocks, length in sequences(table, lengths, mask.shape[3]):
        own, turned = (rows_of(cache, blocks, block)[:length] for cache in (latents, ropes))
        rows, angles = own.to(wide), turned.to(wide)
        scores = query[number].reshape(heads * tokens, rank).to(wide) @ rows.t()
        scores.addmm_(query_rope[number].reshape(heads * tokens, query_rope.shape[3]).to(wide), angles.t())
        seen = mask[number, :, :, :length]
        shares = (scores.view(heads, tokens, length).mul_(scale)).masked_fill_(~seen, -torch.inf).softmax(-1)
        out[number].copy_((shares.view(heads * tokens, length) @ rows).view(heads, tokens, rank))
    return out


def _check(
    query: Tensor, query_rope: Tensor, latents: Tensor, ropes: Tensor, table: Tensor, mask: Tensor, lengths: Tensor
) -> None:
    """Raises ValueError where the arguments do not fit each other."""
    given = (query, query_rope, latents, ropes, table, mask, lengths)
    fits = tuple(one.dim() for one in given) == (4, 4, 2, 2, 2, 4, 1)
    if fits:
        batch, _, tokens, rank = query.shape
        fits = query.shape[:3] == query_rope.shape[:3] and latents.shape[1] == rank > 0
        fits = fits and ropes.shape[1] == query_rope.shape[3] and ropes.shape[0] == latents.shape[0]
        fits = fits and query.dtype == query_rope.dtype == latents.dtype == ropes.dtype and query.is_floating_point()
        fits = fits and table.shape[0] == lengths.shape[0] == mask.shape[0] == batch and table.shape[1] > 0
        fits = fits and tuple(mask.shape[1:3]) == (1, tokens) and mask.dtype == torch.bool
        fits = fits and mask.shape[3] > 0 and mask.shape[3] % table.shape[1] == 0
        fits = fits and latents.shape[0] % (mask.shape[3] // table.shape[1]) == 0
        fits = fits and not any(one.is_floating_point() for one in (table, lengths))
    if not fits:
        shown = ", ".join(f"{one.dtype} {list(one.shape)}" for one in given)
        raise ValueError(
            "latent_attention takes queries (batch, heads, tokens, rank) and (batch, heads, tokens, rope), latents "
            "(rows, rank), ropes (rows, rope), a table (batch, columns), a mask (batch, 1, tokens, columns * block) "
            f"and lengths (batch,): {shown}"
        )


def _shape(*given: Any) -> Tensor:
    _check(*given[:-1])
    return torch.empty_like(given[0], memory_format=torch.contiguous_format)


def _shape_out(*given: Any, out: Tensor) -> Tensor:
    _check(*given[:-1])
    return check_out("latent_attention", out, given[0].shape, given[0].dtype)


_library.define(f"latent_attention{_SCHEMA}) -> Tensor")
_library.define(f"latent_attention.out{_SCHEMA}, *, Tensor(a!) out) -> Tensor(a!)")
for _name, _kernel, _meta in (
    ("latent_attention", latent_attention, _shape),
    ("latent_attention.out", _latent_attention_out, _shape_out),
):
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _meta, "Meta")
OP = torch.ops.air.latent_attention.default
