"""Attention masks where each sequence of a batch is at a position of its own, and padding never sees nothing.

transformers describes a mask as a function of indices (causal, sliding, in chunks), and makes it of them with one
offset for the whole batch. Here the offset is a tensor, one for each sequence.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from transformers import masking_utils

from ..errors import UnsupportedError
from .instead import instead


def masks_by_sequence() -> contextlib.AbstractContextManager[None]:
    """Within the block transformers' models make their masks here."""
    return instead(masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, {"eager": _added, "sdpa": _seen})


def _seen(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., torch.Tensor] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_: object,
) -> torch.Tensor:
    """What each query sees, (batch, 1, queries, keys): what the function says of real tokens, and the token itself."""
    if use_vmap:
        raise UnsupportedError(
            "the model combines masks in a way of its own",
            where="transformers' attention masks",
            expected="causal masks, sliding windows or chunks",
        )
    batch = torch.arange(batch_size, device=device)[:, None, None, None]
    keys = torch.arange(kv_length, device=device)[None, None, None, :] + kv_offset
    offset = q_offset[:, None, None, None] if isinstance(q_offset, torch.Tensor) else q_offset
    queries = torch.arange(q_length, device=device)[None, None, :, None] + offset
    seen = mask_function(batch, torch.zeros_like(batch[:1]), queries, keys)
    if attention_mask is not None:
        seen = seen & attention_mask[:, None, None, :]
    return (seen | (queries == keys)).expand(batch_size, 1, q_length, kv_length)


def _added(dtype: torch.dtype = torch.float32, **given: Any) -> torch.Tensor:
    """The same as what is added to scores: nothing, or the least number of `dtype`."""
    seen = _seen(**given)
    return torch.where(seen, torch.zeros((), dtype=dtype, device=seen.device), torch.finfo(dtype).min)
