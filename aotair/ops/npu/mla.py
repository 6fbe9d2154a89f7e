"""The products, norms and rotations before multi-head latent attention (MLA), and the writes into its caches.

Source: the documentation of torch_npu's `npu_mla_prolog_v3` (aclnnMlaPrologV3WeightNz).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..registry import HostOp, Unserved, only, refuse
from .cache import interleaved_rope, write_paged
from .norm import rms_norm

_OP = "npu_mla_prolog_v3"
_MODES = ("PA_BSND", "PA_NZ", "BSND", "TND")


def _product(left: Tensor, right: Tensor) -> Tensor:
    return torch.matmul(left.float(), right.float()).to(left.dtype)


def _norm(x: Tensor, gamma: Tensor, epsilon: float, scale: float) -> Tensor:
    """`rms_norm` times a number, rounded once."""
    return (rms_norm(x.float(), gamma, epsilon)[0] * scale).to(x.dtype)


def _write(cache: Tensor, rows: Tensor, index: Tensor | None, mode: str) -> None:
    """rows: (tokens, size). In the modes that are not paged they are the whole cache."""
    rows = rows.unsqueeze(1)
    if mode in ("BSND", "TND"):
        cache.copy_(rows.view(cache.shape))
    else:
        assert index is not None  # `_check` refuses the others
        write_paged(cache, rows, index, mode == "PA_NZ")


def _check(cache_mode: str, index: Tensor | None, tensors: Sequence[Tensor], unserved: dict[str, object]) -> None:
    refuse(_OP, unserved)
    only(_OP, "cache_mode", cache_mode, _MODES)
    if (index is None) != (cache_mode in ("BSND", "TND")):
        raise Unserved(f"{_OP} takes a cache_index with the cache_mode PA_BSND or PA_NZ, and only then")
    if any(tensor.dtype != torch.bfloat16 for tensor in tensors):
        raise Unserved(f"the host kernel of {_OP} takes tensors of bfloat16 alone")


def mla_prolog_v3(
    token_x: Tensor,
    weight_dq: Tensor,
    weight_uq_qr: Tensor,
    weight_uk: Tensor,
    weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor,
    rmsnorm_gamma_ckv: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    kv_cache: Tensor,
    kr_cache: Tensor,
    *,
    cache_index: Tensor | None = None,
    rmsnorm_epsilon_cq: float = 1e-5,
    rmsnorm_epsilon_ckv: float = 1e-5,
    cache_mode: str = "PA_BSND",
    query_norm_flag: bool = False,
    tile_size: int = 128,
    qc_qr_scale: float = 1.0,
    kc_scale: float = 1.0,
    **unserved: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The queries and keys of tokens, without quantisation: (query, query_rope, nothing, query_norm, nothing).

    `c = rms_norm(token_x @ weight_dq, rmsnorm_gamma_cq) * qc_qr_scale`; `c @ weight_uq_qr` has for each head the part
    whose product with weight_uk[head] is query, and the part whose `interleaved_rope` is query_rope; query_norm is c,
    or empty without query_norm_flag. `token_x @ weight_dkv_kr` has the part whose
    `rms_norm(..., rmsnorm_gamma_ckv) * kc_scale` goes into kv_cache, and the part whose rotation goes into kr_cache.
    Each product and norm is rounded to the dtype, bfloat16.

    token_x: (tokens, hidden), or (batch, tokens, hidden), and then rope_sin and rope_cos (.., rope) and the results
    alike; weight_dq: (hidden, q_rank); weight_uq_qr: (q_rank, heads * (head + rope)); weight_uk: (heads, head,
    kv_rank); weight_dkv_kr: (hidden, kv_rank + rope), all in plain layout. cache_mode "PA_BSND": caches (blocks,
    block_size, 1, kv_rank or rope), cache_index counts tokens over all blocks, and a negative one writes nothing;
    "PA_NZ": the same with blocks in FRACTAL_NZ; "BSND" and "TND": the tokens are the whole cache, without an index.
    tile_size counts where the cache is quantised by tiles, which is not served: it changes nothing here.
    """
    floats = (token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, kv_cache, kr_cache)
    _check(cache_mode, cache_index, floats, unserved)
    heads, head, kv_rank = weight_uk.shape
    lead, x = token_x.shape[:-1], token_x.flatten(0, -2)
    cos, sin = rope_cos.flatten(0, -2), rope_sin.flatten(0, -2)
    latent = _norm(_product(x, weight_dq), rmsnorm_gamma_cq, rmsnorm_epsilon_cq, qc_qr_scale)
    queries = _product(latent, weight_uq_qr).unflatten(-1, (heads, -1))
    query = _product(queries[..., :head].transpose(0, 1), weight_uk).transpose(0, 1)
    query_rope = interleaved_rope(queries[..., head:], cos.unsqueeze(1), sin.unsqueeze(1))
    keys = _product(x, weight_dkv_kr)
    normed = _norm(keys[..., :kv_rank], rmsnorm_gamma_ckv, rmsnorm_epsilon_ckv, kc_scale)
    _write(kv_cache, normed, cache_index, cache_mode)
    _write(kr_cache, interleaved_rope(keys[..., kv_rank:], cos, sin), cache_index, cache_mode)
    nothing = x.new_empty(0, dtype=torch.float32)
    query_norm = latent.view(*lead, -1) if query_norm_flag else x.new_empty(0)
    return query.reshape(*lead, heads, -1), query_rope.view(*lead, heads, -1), nothing, query_norm, nothing.clone()


def mla_prolog_v3_functional(*args: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """`mla_prolog_v3` on copies of the caches, which are two more results."""
    caches = args[-2].clone(), args[-1].clone()
    given = (*args[:-2], *caches)
    return *mla_prolog_v3(*given, **options), *caches


def _shape(
    token_x: Tensor,
    *rest: Tensor,
    query_norm_flag: bool = False,
    cache_mode: str = "PA_BSND",
    cache_index: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, ...]:
    numbers = ("rmsnorm_epsilon_cq", "rmsnorm_epsilon_ckv", "tile_size", "qc_qr_scale", "kc_scale")
    unserved = {name: value for name, value in options.items() if name not in numbers}
    _check(cache_mode, cache_index, (token_x, *rest[:4], *rest[8:10]), unserved)
    lead, (heads, _, kv_rank), rope = token_x.shape[:-1], rest[2].shape, rest[6].shape[-1]
    none = token_x.new_empty(0, dtype=torch.float32)
    query_norm = token_x.new_empty((*lead, rest[0].shape[1]) if query_norm_flag else (0,))
    query, query_rope = token_x.new_empty((*lead, heads, kv_rank)), token_x.new_empty((*lead, heads, rope))
    return query, query_rope, none, query_norm, torch.empty_like(none)


def _shape_functional(*args: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return *_shape(*args, **options), torch.empty_like(args[9]), torch.empty_like(args[10])


_FIRST = (
    "Tensor token_x, Tensor weight_dq, Tensor weight_uq_qr, Tensor weight_uk, Tensor weight_dkv_kr, "
    "Tensor rmsnorm_gamma_cq, Tensor rmsnorm_gamma_ckv, Tensor rope_sin, Tensor rope_cos"
)
_OPTIONS = (
    "Tensor? cache_index=None, Tensor? dequant_scale_x=None, Tensor? dequant_scale_w_dq=None, "
    "Tensor? dequant_scale_w_uq_qr=None, Tensor? dequant_scale_w_dkv_kr=None, Tensor? quant_scale_ckv=None, "
    "Tensor? quant_scale_ckr=None, Tensor? smooth_scales_cq=None, Tensor? actual_seq_len=None, "
    "Tensor? k_nope_clip_alpha=None, float rmsnorm_epsilon_cq=1e-05, float rmsnorm_epsilon_ckv=1e-05, "
    "str cache_mode='PA_BSND', bool query_norm_flag=False, int weight_quant_mode=0, int kv_cache_quant_mode=0, "
    "int query_quant_mode=0, int ckvkr_repo_mode=0, int quant_scale_repo_mode=0, int tile_size=128, "
    "float qc_qr_scale=1., float kc_scale=1., int? token_x_dtype=None, int? weight_dq_dtype=None, "
    "int? weight_uq_qr_dtype=None, int? weight_dkv_kr_dtype=None, int? kv_cache_dtype=None"
)

OPS = (
    HostOp(
        f"{_OP}({_FIRST}, Tensor(a!) kv_cache, Tensor(b!) kr_cache, *, {_OPTIONS}) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        mla_prolog_v3,
        _shape,
    ),
    HostOp(
        f"{_OP}_functional({_FIRST}, Tensor kv_cache, Tensor kr_cache, *, {_OPTIONS}) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        mla_prolog_v3_functional,
        _shape_functional,
    ),
)
