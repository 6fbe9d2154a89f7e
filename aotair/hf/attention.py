"""Attention that reads keys and values where the cache holds them, for layers of transformers that ask for `sdpa`: by
an op of the CPU, or by that of NPUs over blocks."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from aotair_runtime.devices import attention

from .caches import AttentionLayer, Call, Rows
from .instead import instead


def attending(rows: Rows, call: Call) -> contextlib.AbstractContextManager[None]:
    """Within the block, a layer that is given keys and values of the cache reads them there: `air::paged_attention`.
    One that changes them first, or begins its sequences, computes what transformers computes."""

    def attend(query: Tensor, key: Tensor, mask: Tensor, layer: AttentionLayer, scale: float) -> Tensor | None:
        result: Tensor = attention.OP(query, *layer.buffers, call.table, mask, call.lengths, scale)
        return result

    return _reading(rows, call, attend)


def attending_blocks(rows: Rows, call: Call, lengths: Sequence[int]) -> contextlib.AbstractContextManager[None]:
    """The same by `npu_fused_infer_attention_score`, for calls of one token for each sequence; `lengths` are how many
    tokens each has with this one, on the host. What only a mask says (a sliding window) is said by one."""

    def attend(query: Tensor, key: Tensor, mask: Tensor, layer: AttentionLayer, scale: float) -> Tensor | None:
        heads, width = key.shape[1], key.shape[3]
        keys, values = (buffer.view(-1, call.block, buffer.shape[1]) for buffer in layer.buffers)
        if query.shape[2] != 1 or mask.shape[1] != 1 or values.shape[2] != heads * width:
            return None
        result: Tensor = torch.ops.npu.npu_fused_infer_attention_score(
            query,
            keys,
            values,
            atten_mask=~mask if layer.is_sliding else None,
            actual_seq_lengths_kv=lengths,
            block_table=call.table.to(torch.int32),
            block_size=call.block,
            num_heads=query.shape[1],
            num_key_value_heads=heads,
            input_layout="BNSD",
            scale=scale,
        )[0]
        return result

    return _reading(rows, call, attend)


# (query, key, mask, layer, scale) to (batch, heads, tokens, width), or None where it does not serve the layer.
_Attend = Callable[[Tensor, Tensor, Tensor, AttentionLayer, float], Tensor | None]


def _reading(rows: Rows, call: Call, attend: _Attend) -> contextlib.AbstractContextManager[None]:
    """Within the block, `attend` is asked for the layers that are given what the cache holds, with a mask."""

    def forward(
        module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, None]:
        layer = rows.layer(key, value)
        mask = args[0] if args else kwargs.get("attention_mask")
        plain = call.fresh or kwargs.get("position_bias") is not None
        if not plain and layer is not None and mask is not None and mask.dtype == torch.bool:
            scale = kwargs.get("scaling")
            result = attend(query, key, mask, layer, query.shape[-1] ** -0.5 if scale is None else float(scale))
            if result is not None:
                return result.transpose(1, 2).contiguous(), None
        answer: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, *args, **kwargs)
        return answer

    return instead(ALL_ATTENTION_FUNCTIONS, {"sdpa": forward})
