"""Which layers of latent attention have their queries and the rows of their cache made by one op of NPUs?

`npu_mla_prolog_v3` is what such a layer does before it attends: four products, two norms, two rotations and the writes
into the cache. Its kernel takes the widths of DeepSeek-V3, bfloat16, a paged cache, and weights in the format NZ alone.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from ..log import logger
from .caches import AttentionLayer, Call, Rows

# Of torch_npu's documentation: what the kernel is written for.
_HIDDEN, _HEADS = (7168, 7680), (1, 2, 4, 8, 16, 32, 64, 128)
_WIDTHS = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
_LEAST_BLOCK, _MOST_BLOCK = 16, 1024

# (module, query, its rotated part, mask, layer) to what the heads give, (batch, heads, tokens, width of values).
Attend = Callable[[Any, Tensor, Tensor, Tensor, AttentionLayer], Tensor]


@contextlib.contextmanager
def made_at_once(model: nn.Module, rows: Rows, call: Call, attend: Attend) -> Iterator[None]:
    """Within the block, layers that the kernel takes call it, and `attend` to what it made of queries."""
    layers: list[Any] = [module for module in model.modules() if type(module) is DeepseekV3Attention]
    fitting = [module for module in layers if _fits(module, rows, call)]
    for module in fitting:
        module.forward = functools.partial(_forward, module, rows, call, attend)
    try:
        yield
    finally:
        for module in fitting:
            del module.forward


def _fits(module: Any, rows: Rows, call: Call) -> bool:
    layer = rows.layers[module.layer_idx]
    why = _why_not(module, layer, call) if isinstance(layer, AttentionLayer) else "it keeps no latents"
    if why:
        logger.info("npu_mla_prolog_v3 is not called by layer %d: %s", module.layer_idx, why)
    return not why


def _why_not(module: Any, layer: AttentionLayer, call: Call) -> str:
    """Why the kernel does not take a layer; empty where it does."""
    sizes = {name: getattr(module, name) for name in _WIDTHS} | {"hidden_size": module.hidden_size}
    wrong = [f"{name} is {sizes[name]}, not {size}" for name, size in _WIDTHS.items() if sizes[name] != size]
    if module.hidden_size not in _HIDDEN:
        wrong.append(f"hidden_size is {module.hidden_size}, not {' or '.join(map(str, _HIDDEN))}")
    if wrong:
        return wrong[0]
    matrices = [module.q_a_proj, module.q_b_proj, module.kv_a_proj_with_mqa, module.kv_b_proj]
    if any(type(one) is not nn.Linear or one.weight.dtype != torch.bfloat16 for one in matrices):
        return "its weights are not all of bfloat16"
    if any(one.bias is not None for one in matrices):
        return "its products have biases"
    if module.q_b_proj.out_features // module.qk_head_dim not in _HEADS:
        return f"it has {module.q_b_proj.out_features // module.qk_head_dim} heads, which is no power of two up to 128"
    if not module.config.rope_interleave:
        return "it rotates halves, not neighbours"
    if layer.scales or any(buffer.dtype != torch.bfloat16 for buffer in layer.buffers):
        return "its cache is not of bfloat16"
    if call.block % _LEAST_BLOCK or call.block > _MOST_BLOCK:
        return f"its cache has blocks of {call.block} tokens, not of a multiple of 16 up to {_MOST_BLOCK}"
    return ""


def _forward(
    module: Any,
    rows: Rows,
    call: Call,
    attend: Attend,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor,
    **_: object,
) -> tuple[Tensor, None]:
    """`DeepseekV3Attention.forward`; hidden_states: (batch, tokens, hidden)."""
    layer: Any = rows.layers[module.layer_idx]
    query, rope = _queries(module, layer, call, hidden_states, position_embeddings)
    made = attend(module, query.transpose(1, 2), rope.transpose(1, 2), attention_mask, layer)
    return module.o_proj(made.transpose(1, 2).flatten(2)), None


def _queries(
    module: Any, layer: AttentionLayer, call: Call, x: Tensor, angles: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """The queries of tokens, (batch, tokens, heads, rank) and (batch, tokens, heads, rope), once the rows of tokens are
    in the cache."""
    tokens = _written_only(call)
    cos, sin = (one.expand(*x.shape[:2], -1).flatten(0, 1).index_select(0, tokens) for one in angles)
    kept = module.kv_b_proj.weight.unflatten(0, (-1, module.qk_nope_head_dim + module.v_head_dim))
    views = [buffer.view(-1, call.block, 1, buffer.shape[1]) for buffer in layer.buffers]
    query, rope, _, _, _, *news = torch.ops.npu.npu_mla_prolog_v3_functional(
        x.flatten(0, 1).index_select(0, tokens),
        module.q_a_proj.weight.t().contiguous(),
        module.q_b_proj.weight.t().contiguous(),
        kept[:, : module.qk_nope_head_dim].contiguous(),
        module.kv_a_proj_with_mqa.weight.t().contiguous(),
        module.q_a_layernorm.weight,
        module.kv_a_layernorm.weight,
        sin,
        cos,
        *views,
        cache_index=call.places.index_select(0, tokens),
        rmsnorm_epsilon_cq=module.q_a_layernorm.variance_epsilon,
        rmsnorm_epsilon_ckv=module.kv_a_layernorm.variance_epsilon,
    )
    for view, new in zip(views, news, strict=True):
        view.copy_(new)
    return query.unflatten(0, x.shape[:2]), rope.unflatten(0, x.shape[:2])


def _written_only(call: Call) -> Tensor:
    """By token, itself, or for what pads a call the last that has a place in the cache: the kernel writes a row for
    each that it is given, and writes that one again. Where none has, the first of all: nobody reads the spare block.
    (batch * tokens,)"""
    written = call.written[:, 0]
    tokens = torch.arange(written.shape[0], device=written.device)
    return torch.where(written, tokens, torch.where(written, tokens, 0).amax())
