"""Which form does latent attention get where it reads a cache of latents: absorbed, so that nothing is expanded.

A layer keeps a latent c of each token, and a key that is rotated, r; `kv_b_proj` makes of c the keys and values of each
head h: U_h c and V_h c. A query with the parts q and p sees of a token q·(U_h c) + p·r = (U_hᵀ q)·c + p·r, and the sum
of values is V_h (the sum of latents). So the matrices meet the few queries instead of all that is kept.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .caches import AttentionLayer, Rows

# (query, its rotated part, mask, layer, scale) to the sum of latents (batch, heads, tokens, rank). The query is
# (batch, heads, tokens, rank), the other part (batch, heads, tokens, rope).
AttendLatents = Callable[[Tensor, Tensor, Tensor, AttentionLayer, float], Tensor]
_Expand = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class _Expanded:
    """Keys and values (batch, heads, tokens, …) that a layer of the model made of what `layer` keeps."""

    keys: Tensor
    values: Tensor
    layer: AttentionLayer


class Expansions:
    """What the layers of one call expanded, so that attention which is given it can read the latents instead. What it
    does not use is dead code of the exported graph."""

    def __init__(self, rows: Rows):
        self._rows = rows
        self._made: list[_Expanded] = []

    @contextlib.contextmanager
    def noted(self, model: nn.Module) -> Iterator[None]:
        """Within the block, layers of latent attention of `model` say what they expand."""
        layers: list[Any] = [module for module in model.modules() if _is_latent(module)]
        for module in layers:
            module.expand_kv = self._noting(module.expand_kv)
        try:
            yield
        finally:
            for module in layers:
                del module.expand_kv

    def layer(self, keys: Tensor, values: Tensor) -> AttentionLayer | None:
        """Where the latents of these keys and values lie; None where they were not expanded from a cache."""
        for made in self._made:
            if made.keys is keys and made.values is values:
                return made.layer
        return None

    def _noting(
        self, expand: Callable[..., tuple[Tensor, Tensor]]
    ) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        def noting(latents: Tensor, ropes: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = expand(latents, ropes)
            layer = self._rows.layer(latents, ropes)
            if layer is not None:
                self._made.append(_Expanded(keys, values, layer))
            return keys, values

        return noting


def absorbed(
    module: Any, query: Tensor, mask: Tensor, layer: AttentionLayer, scale: float, attend: AttendLatents
) -> Tensor:
    """Attention (batch, heads, tokens, width of values) of a layer of transformers whose keys would follow from the
    latents of `layer`; query: (batch, heads, tokens, width of keys)."""
    batch, heads, tokens, width = query.shape
    rank, values = layer.buffers[0].shape[1], module.v_head_dim
    plain = width - layer.buffers[1].shape[1]
    matrices = module.kv_b_proj.weight.view(heads, plain + values, rank)
    own = query[..., :plain].transpose(0, 1).reshape(heads, batch * tokens, plain)
    asked = torch.bmm(own, matrices[:, :plain]).view(heads, batch, tokens, rank).transpose(0, 1)
    return values_of(module, attend(asked, query[..., plain:], mask, layer, scale))


def values_of(module: Any, latents: Tensor) -> Tensor:
    """The values (batch, heads, tokens, width of values) that sums of latents (batch, heads, tokens, rank) stand
    for."""
    batch, heads, tokens, rank = latents.shape
    matrices = module.kv_b_proj.weight.view(heads, -1, rank)[:, -module.v_head_dim :]
    summed = latents.transpose(0, 1).reshape(heads, batch * tokens, rank)
    made = torch.bmm(summed, matrices.transpose(1, 2))
    return made.view(heads, batch, tokens, module.v_head_dim).transpose(0, 1)


def attend_gathered(query: Tensor, rope: Tensor, mask: Tensor, layer: AttentionLayer, scale: float) -> Tensor:
    """The same over rows that were copied out of the cache: for devices without an op that reads them there. Scores of
    half precision would be rounded, and too large for float16, before they are scaled: all is computed in float32."""
    wide = torch.promote_types(query.dtype, torch.float32)
    latents, ropes = (part.squeeze(1).to(wide) for part in layer.given)  # (batch, length, rank), (batch, length, rope)
    batch, heads, tokens, rank = query.shape
    scores = query.to(wide).reshape(batch, heads * tokens, rank) @ latents.transpose(1, 2)
    scores = scores + rope.to(wide).reshape(batch, heads * tokens, rope.shape[3]) @ ropes.transpose(1, 2)
    seen = (scores.view(batch, heads, tokens, -1) * scale).masked_fill(~mask, -torch.inf).softmax(-1)
    summed = seen.view(batch, heads * tokens, -1) @ latents
    return summed.view(batch, heads, tokens, rank).to(query.dtype)


def _is_latent(module: Any) -> bool:
    """Whether a layer expands latents as this file thinks: by one plain matrix for all heads' keys and values."""
    if not callable(getattr(type(module), "expand_kv", None)):
        return False
    sizes = [getattr(module, name, None) for name in ("qk_nope_head_dim", "v_head_dim", "kv_lora_rank")]
    matrix = getattr(module, "kv_b_proj", None)
    if type(matrix) is not nn.Linear or matrix.bias is not None or not all(isinstance(size, int) for size in sizes):
        return False
    plain, values, rank = sizes
    return matrix.in_features == rank and matrix.out_features % (plain + values) == 0
