"""Attention that reads keys and values where the cache holds them, for layers of transformers that ask for `sdpa`."""

import contextlib
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from aotair_runtime.devices import attention

from .caches import Call, Rows
from .instead import instead


def attending(rows: Rows, call: Call) -> contextlib.AbstractContextManager[None]:
    """Within the block, a layer that is given keys and values of the cache reads them there: `air::paged_attention`.
    One that changes them first, or begins its sequences, computes what transformers computes."""

    def forward(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        found = rows.buffers(key, value)
        mask = args[0] if args else kwargs.get("attention_mask")
        plain = call.fresh or kwargs.get("position_bias") is not None
        if plain or found is None or mask is None or mask.dtype != torch.bool:
            answer: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, *args, **kwargs)
            return answer
        scale = kwargs.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        result: torch.Tensor = attention.OP(query, *found, call.table, mask, call.lengths, scale)
        return result.transpose(1, 2).contiguous(), None

    return instead(ALL_ATTENTION_FUNCTIONS, {"sdpa": forward})
