"""What multi-head latent attention (MLA) puts into its caches: norm of one part, rotation of the other, write.

Source: the documentation of torch_npu's `npu_kv_rmsnorm_rope_cache` (aclnnKvRmsNormRopeCache), of which
`npu_kv_rmsnorm_rope_cache_v2` is the form that says what it writes into.
"""

from typing import Any

import torch
from torch import Tensor

from ..registry import HostOp, Unserved, only, refuse
from .norm import rms_norm

_OP = "npu_kv_rmsnorm_rope_cache_v2"
_NZ = 16  # how many numbers of two bytes lie together in the layout FRACTAL_NZ


def interleaved_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`z * cos + turn(z) * sin`, where z has the even elements of the last dimension of x before the odd ones, and
    `turn(z)` its second half, negated, before the first. In float32, rounded once."""
    even, odd = x.float()[..., ::2], x.float()[..., 1::2]
    straight, turned = torch.cat((even, odd), -1), torch.cat((-odd, even), -1)
    return (straight * cos.float() + turned * sin.float()).to(x.dtype)


def write_paged(cache: Tensor, rows: Tensor, index: Tensor, nz: bool) -> None:
    """Row i of rows (tokens, heads, size) becomes token `index[i]` of a cache (blocks, block_size, heads, size); a
    negative index writes nothing. With nz each block holds (size / 16, block_size, 16) in that order."""
    index = index.flatten().long()
    kept = index >= 0
    index, rows = index[kept], rows[kept].to(cache.dtype)
    blocks, block_size, heads, size = cache.shape
    if not nz:
        cache.view(-1, heads, size)[index] = rows
    elif heads != 1 or size % _NZ:
        raise Unserved(f"cache_mode='PA_NZ' with {heads} heads of {size}", expected=f"one head of a multiple of {_NZ}")
    else:
        by_token = cache.view(blocks, size // _NZ, block_size, _NZ).transpose(1, 2)
        by_token[index // block_size, index % block_size] = rows.view(-1, size // _NZ, _NZ)


def _write(cache: Tensor, rows: Tensor, index: Tensor, mode: str) -> None:
    """rows: (batch, heads, tokens, size)."""
    by_token = rows.transpose(1, 2)
    if mode == "Norm":
        if (index < 0).any():
            raise ValueError(f"{_OP}: index has negative places, which 'Norm' does not know")
        batch = torch.arange(rows.shape[0], device=rows.device).unsqueeze(-1)
        cache.transpose(1, 2)[batch, index.long()] = by_token.to(cache.dtype)
    else:
        write_paged(cache, by_token.flatten(0, 1), index, mode == "PA_NZ")


def _check(kv: Tensor, cache_mode: str, caches: tuple[Tensor, Tensor], unserved: dict[str, object]) -> None:
    refuse(_OP, unserved)
    only(_OP, "cache_mode", cache_mode, ("Norm", "PA", "PA_BNSD", "PA_NZ"))
    if any(cache.dtype != kv.dtype for cache in caches):
        raise Unserved(f"the host kernel of {_OP} takes k_cache and ckv_cache of the dtype of kv")


def kv_rmsnorm_rope_cache_v2(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    *,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
    **unserved: object,
) -> tuple[Tensor, Tensor]:
    """Writes `rms_norm(kv[..., :norm], gamma)` into ckv_cache and the rotated `kv[..., norm:]` into k_cache, where norm
    is the length of gamma, and returns both, the rotated one first.

    kv: (batch, 1, tokens, norm + rope), float16 or bfloat16, and the rest alike; cos and sin: (batch, 1, tokens, rope),
    for `interleaved_rope`. cache_mode "Norm": caches (batch, 1, length, size), index (batch, tokens) into the length.
    "PA" and "PA_BNSD": caches (blocks, block_size, 1, size), index (batch * tokens,) counts tokens over all blocks,
    and a negative one writes nothing; "PA_NZ": the same with blocks in FRACTAL_NZ. Without is_output_kv, and in "Norm",
    the device leaves both results unwritten; here they are zero.
    """
    _check(kv, cache_mode, (k_cache, ckv_cache), unserved)
    norm, rope = kv.split((gamma.shape[0], kv.shape[-1] - gamma.shape[0]), -1)
    normed, rotated = rms_norm(norm, gamma, epsilon)[0], interleaved_rope(rope, cos, sin)
    _write(k_cache, rotated, index, cache_mode)
    _write(ckv_cache, normed, index, cache_mode)
    if is_output_kv and cache_mode != "Norm":
        return rotated, normed
    return torch.zeros_like(rotated), torch.zeros_like(normed)


def kv_rmsnorm_rope_cache_v2_functional(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`kv_rmsnorm_rope_cache_v2` on copies of the caches: (rotated, normed, new k_cache, new ckv_cache)."""
    k_cache, ckv_cache = k_cache.clone(), ckv_cache.clone()
    rotated, normed = kv_rmsnorm_rope_cache_v2(kv, gamma, cos, sin, index, k_cache, ckv_cache, **options)
    return rotated, normed, k_cache, ckv_cache


def _shape(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    *,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
    **unserved: object,
) -> tuple[Tensor, Tensor]:
    _check(kv, cache_mode, (k_cache, ckv_cache), unserved)
    return kv.new_empty((*kv.shape[:3], cos.shape[3])), kv.new_empty((*kv.shape[:3], gamma.shape[0]))


def _shape_functional(*args: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *_shape(*args, **options), torch.empty_like(args[5]), torch.empty_like(args[6])


_OPTIONS = (
    "Tensor? k_rope_scale=None, Tensor? c_kv_scale=None, Tensor? k_rope_offset=None, Tensor? c_kv_offset=None, "
    "Tensor? v=None, float epsilon=1e-05, str cache_mode='Norm', bool is_output_kv=False, int? k_cache_dtype=None, "
    "int? ckv_cache_dtype=None"
)
_FIRST = "Tensor kv, Tensor gamma, Tensor cos, Tensor sin, Tensor index"

OPS = (
    HostOp(
        f"{_OP}({_FIRST}, Tensor(a!) k_cache, Tensor(b!) ckv_cache, *, {_OPTIONS}) -> (Tensor, Tensor)",
        kv_rmsnorm_rope_cache_v2,
        _shape,
    ),
    HostOp(
        f"{_OP}_functional({_FIRST}, Tensor k_cache, Tensor ckv_cache, *, {_OPTIONS}) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
        kv_rmsnorm_rope_cache_v2_functional,
        _shape_functional,
    ),
)
