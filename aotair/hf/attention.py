"""Attention that reads what a cache holds where it lies, for layers of transformers that ask for `sdpa`: by an op of
the CPU, or by that of NPUs over blocks. What other devices gather is at least not expanded."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from aotair_runtime.devices import attention, latent_attention

from .caches import AttentionLayer, Call, Rows
from .instead import instead
from .latent import AttendLatents, Expansions, absorbed, attend_gathered, values_of
from .latent_prolog import made_at_once

# (query, key, mask, layer, scale) to (batch, heads, tokens, width), or None where it does not serve the layer.
_Attend = Callable[[Tensor, Tensor, Tensor, AttentionLayer, float], Tensor | None]
_LATENT_ON_NPU = (512, 64)  # the only widths of latents and of rotated keys that the op has a kernel for


@dataclass(frozen=True)
class Reading:
    """What attends to keys and values of a cache, and what to latents; `at_once`: whether queries of latent attention
    and what it keeps may be made by one op."""

    heads: _Attend
    latents: AttendLatents
    at_once: bool = False


def in_place(call: Call) -> Reading:
    """`air::paged_attention` and `air::latent_attention`, of the CPU. The latter reads no whole numbers."""

    def heads(query: Tensor, key: Tensor, mask: Tensor, layer: AttentionLayer, scale: float) -> Tensor | None:
        result: Tensor = attention.OP(query, *layer.buffers, call.table, mask, call.lengths, scale, *layer.scales)
        return result

    def latents(query: Tensor, rope: Tensor, mask: Tensor, layer: AttentionLayer, scale: float) -> Tensor:
        if layer.scales:
            return attend_gathered(query, rope, mask, layer, scale)
        result: Tensor = latent_attention.OP(query, rope, *layer.buffers, call.table, mask, call.lengths, scale)
        return result

    return Reading(heads, latents)


def over_blocks(call: Call, lengths: Sequence[int], nz: bool) -> Reading:
    """`npu_fused_infer_attention_score`, for calls of one token for each sequence; `lengths` are how many tokens each
    has with this one, on the host. What only a mask says (a sliding window) is said by one. It reads no whole
    numbers. `nz`: kernels may read weights in that format."""

    def attend(query: Tensor, keys: Tensor, values: Tensor, groups: int, scale: float, **more: Any) -> Tensor:
        result: Tensor = torch.ops.npu.npu_fused_infer_attention_score(
            query,
            keys.view(-1, call.block, keys.shape[1]),
            values.view(-1, call.block, values.shape[1]),
            actual_seq_lengths_kv=lengths,
            block_table=call.table.to(torch.int32),
            block_size=call.block,
            num_heads=query.shape[1],
            num_key_value_heads=groups,
            input_layout="BNSD",
            scale=scale,
            **more,
        )[0]
        return result

    def heads(query: Tensor, key: Tensor, mask: Tensor, layer: AttentionLayer, scale: float) -> Tensor | None:
        groups, width = key.shape[1], key.shape[3]
        keys, values = layer.buffers
        if layer.scales or query.shape[2] != 1 or mask.shape[1] != 1 or values.shape[1] != groups * width:
            return None
        return attend(query, keys, values, groups, scale, atten_mask=~mask if layer.is_sliding else None)

    def latents(query: Tensor, rope: Tensor, mask: Tensor, layer: AttentionLayer, scale: float) -> Tensor:
        rows, ropes = layer.buffers
        fits = (rows.shape[1], ropes.shape[1]) == _LATENT_ON_NPU
        if layer.scales or not fits or query.shape[2] != 1 or layer.is_sliding:
            return attend_gathered(query, rope, mask, layer, scale)
        turned = ropes.view(-1, call.block, ropes.shape[1])
        return attend(query.contiguous(), rows, rows, 1, scale, query_rope=rope.contiguous(), key_rope=turned)

    return Reading(heads, latents, at_once=nz)


def gathered() -> Reading:
    """Plain ops over rows that are copied out of the cache."""
    return Reading(lambda *_: None, attend_gathered)


@contextlib.contextmanager
def reading(model: nn.Module, rows: Rows, call: Call, by: Reading) -> Iterator[None]:
    """Within the block, a layer that is given keys and values of the cache, or what it expanded from latents there,
    reads them by `by`. One that changes them first, or begins its sequences, computes what transformers computes."""
    expansions = Expansions(rows)

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Any:
        layer = rows.layer(key, value)
        if layer is not None:
            return by.heads(query, key, mask, layer, scale)
        latents = expansions.layer(key, value) if call.few else None
        return None if latents is None else absorbed(module, query, mask, latents, scale, by.latents)

    def forward(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, None]:
        mask = args[0] if args else kwargs.get("attention_mask")
        plain = call.fresh or kwargs.get("position_bias") is not None
        if not plain and mask is not None and mask.dtype == torch.bool:
            scale = kwargs.get("scaling")
            result = attend(module, query, key, value, mask, query.shape[-1] ** -0.5 if scale is None else float(scale))
            if result is not None:
                return result.transpose(1, 2).contiguous(), None
        answer: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, *args, **kwargs)
        return answer

    def attend_to_latents(module: Any, query: Tensor, rope: Tensor, mask: Tensor, layer: AttentionLayer) -> Tensor:
        return values_of(module, by.latents(query, rope, mask, layer, module.scaling))

    at_once = made_at_once(model, rows, call, attend_to_latents) if by.at_once else contextlib.nullcontext()
    with expansions.noted(model), at_once, instead(ALL_ATTENTION_FUNCTIONS, {"sdpa": forward}):
        yield
