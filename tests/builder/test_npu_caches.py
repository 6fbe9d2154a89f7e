"""The host kernels that fill the caches of latent attention, against loops over tokens; in place and functional."""

import pytest
import torch
from graphs import assert_same_numbers, targets
from npu_samples import HALVES, latent_caches, op, tensor

import aotair.ops.npu  # noqa: F401
from aotair.ops.registry import Unserved
from aotair.passes import reinplace_input_mutated_ops

ops = torch.ops.npu
NORM, ROPE, LENGTH, BLOCK = 32, 16, 6, 4


def rotated(x, cos, sin):
    """One vector, pair by pair: (even, odd) turns, and the even ones come first."""
    half = len(x) // 2
    even, odd = x[::2].double(), x[1::2].double()
    cos, sin = cos.double(), sin.double()
    return torch.cat([even * cos[:half] - odd * sin[:half], odd * cos[half:] + even * sin[half:]])


def normed(x, gamma, epsilon):
    x = x.double()
    return x / (x.square().mean() + epsilon).sqrt() * gamma.double()


def nz(block):
    """A block (tokens, size) as FRACTAL_NZ lies in memory, number by number."""
    tokens, size = block.shape
    result = torch.zeros(tokens * size, dtype=block.dtype)
    for token in range(tokens):
        for number in range(size):
            result[(number // 16) * tokens * 16 + token * 16 + number % 16] = block[token, number]
    return result.view(tokens, size)


def as_nz(cache):
    """A cache with every block in FRACTAL_NZ."""
    return torch.stack([nz(block) for block in cache.view(cache.shape[0], BLOCK, -1)]).view(cache.shape)


def close(got, want):
    tolerance = 2e-2 if got.dtype == torch.bfloat16 else 2e-3
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("mode", ["Norm", "PA", "PA_BNSD", "PA_NZ"])
def test_keys_are_rotated_and_latents_normed_into_their_places(dtype, mode):
    kv, gamma = tensor((2, 1, 3, NORM + ROPE), dtype), tensor((NORM,), dtype)
    cos, sin = tensor((2, 1, 3, ROPE), dtype), tensor((2, 1, 3, ROPE), dtype)
    shape = (2, 1, LENGTH) if mode == "Norm" else (3, BLOCK, 1)
    k_cache, ckv_cache = tensor((*shape, ROPE), dtype), tensor((*shape, NORM), dtype)
    index = torch.tensor([[0, 5, 2], [3, 1, 4]]) if mode == "Norm" else torch.tensor([7, 0, -1, 11, 4, 5])
    want_k, want_ckv = (x.double().view(-1, x.shape[-1]).clone() for x in (k_cache, ckv_cache))
    if mode == "PA_NZ":  # what is there is read as NZ too, so it is written so first
        k_cache, ckv_cache = (
            torch.stack([nz(b) for b in x.view(3, BLOCK, -1)]).view(x.shape) for x in (k_cache, ckv_cache)
        )
    for b in range(2):
        for t in range(3):
            place = b * LENGTH + index[b, t] if mode == "Norm" else index[b * 3 + t]
            if place >= 0:
                want_k[place] = rotated(kv[b, 0, t, NORM:], cos[b, 0, t], sin[b, 0, t])
                want_ckv[place] = normed(kv[b, 0, t, :NORM], gamma, 1e-4)
    options = {"cache_mode": mode, "epsilon": 1e-4, "is_output_kv": mode != "Norm"}
    rope, latent = ops.npu_kv_rmsnorm_rope_cache_v2(kv, gamma, cos, sin, index, k_cache, ckv_cache, **options)
    for cache, want in ((k_cache, want_k), (ckv_cache, want_ckv)):
        if mode == "PA_NZ":
            want = as_nz(want.view(cache.shape)).view(want.shape)
        close(cache.view(want.shape), want)
    if mode == "Norm":
        assert not rope.any() and not latent.any()
    else:
        close(rope[1, 0, 2], rotated(kv[1, 0, 2, NORM:], cos[1, 0, 2], sin[1, 0, 2]))
        close(latent[0, 0, 1], normed(kv[0, 0, 1, :NORM], gamma, 1e-4))


def prolog(lead, mode):
    shapes = (*lead, 24), (24, 12), (12, 3 * (8 + ROPE)), (3, 8, NORM), (24, NORM + ROPE), (12,), (NORM,)
    caches = [(*lead, 1, size) if mode in ("BSND", "TND") else (3, BLOCK, 1, size) for size in (NORM, ROPE)]
    return [tensor(shape, torch.bfloat16) / 2 for shape in (*shapes, (*lead, ROPE), (*lead, ROPE), *caches)]


@pytest.mark.parametrize(
    ("lead", "mode"), [((4,), "PA_BSND"), ((2, 2), "PA_BSND"), ((4,), "PA_NZ"), ((4,), "TND"), ((2, 2), "BSND")]
)
def test_the_prolog_is_four_paths(lead, mode):
    args = prolog(lead, mode)
    x, dq, uq_qr, uk, dkv_kr, gamma_cq, gamma_ckv, sin, cos, kv_cache, kr_cache = args
    index = torch.tensor([9, -1, 0, 6])
    paged = {} if mode in ("BSND", "TND") else {"cache_index": index.view(lead)}
    before = kv_cache.clone()
    scales = {"qc_qr_scale": 1.5, "kc_scale": 0.5, "rmsnorm_epsilon_cq": 1e-3, "rmsnorm_epsilon_ckv": 1e-2}
    query, rope, _, latent, _ = ops.npu_mla_prolog_v3(*args, cache_mode=mode, query_norm_flag=True, **scales, **paged)
    assert query.shape == (*lead, 3, NORM) and rope.shape == (*lead, 3, ROPE) and latent.shape == (*lead, 12)
    flat = [t.flatten(0, -2) for t in (x, cos, sin, latent)]
    query, rope = query.view(4, 3, NORM), rope.view(4, 3, ROPE)
    keys, rotations = kv_cache.view(-1, NORM), kr_cache.view(-1, ROPE)
    for token in range(4):
        hidden, its_cos, its_sin, its_latent = (t[token] for t in flat)
        want = normed(hidden.double() @ dq.double(), gamma_cq, 1e-3) * 1.5
        torch.testing.assert_close(its_latent.double(), want, rtol=3e-2, atol=3e-2)
        heads = (its_latent.double() @ uq_qr.double()).view(3, 8 + ROPE)
        for head in range(3):
            torch.testing.assert_close(
                query[token, head].double(), heads[head, :8] @ uk[head].double(), rtol=5e-2, atol=1e-1
            )
            torch.testing.assert_close(
                rope[token, head].double(), rotated(heads[head, 8:], its_cos, its_sin), rtol=5e-2, atol=1e-1
            )
        key = hidden.double() @ dkv_kr.double()
        place = token if not paged else int(index[token])
        if mode != "PA_NZ" and place >= 0:
            want = normed(key[:NORM], gamma_ckv, 1e-2) / 2
            torch.testing.assert_close(keys[place].double(), want, rtol=3e-2, atol=3e-2)
            want = rotated(key[NORM:], its_cos, its_sin)
            torch.testing.assert_close(rotations[place].double(), want, rtol=5e-2, atol=1e-1)
    if mode == "PA_BSND":
        others = [place for place in range(3 * BLOCK) if place not in index.tolist()]
        assert torch.equal(keys[others], before.view(-1, NORM)[others])


def test_nz_is_another_order_of_the_same_numbers():
    index, inputs = torch.tensor([9, 3, 0, 6]), prolog((4,), "PA_BSND")[:9]
    plain, turned = ([torch.zeros(3, BLOCK, 1, size).bfloat16() for size in (NORM, ROPE)] for _ in range(2))
    ops.npu_mla_prolog_v3(*inputs, *plain, cache_index=index)
    ops.npu_mla_prolog_v3(*inputs, *turned, cache_index=index, cache_mode="PA_NZ")
    for cache, other in zip(plain, turned):
        assert cache.any() and torch.equal(as_nz(cache), other)


def test_in_place_is_functional_and_a_copy():
    functional = {
        "npu_kv_rmsnorm_rope_cache_v2": "npu_kv_rmsnorm_rope_cache_v2_functional",
        "npu_mla_prolog_v3": "npu_mla_prolog_v3_functional",
    }
    for name, args, kwargs in latent_caches():
        if name in functional:
            *first, one, two = args
            *results, new_one, new_two = op(functional[name])(*first, one.clone(), two.clone(), **kwargs)
            assert not torch.equal(new_one, one) and not torch.equal(new_two, two)
            for got, want in zip(op(name)(*args, **kwargs), results, strict=True):
                assert torch.equal(got, want)
            assert torch.equal(one, new_one) and torch.equal(two, new_two)


def test_the_pass_puts_the_new_caches_where_the_old_ones_are():
    index = torch.tensor([7, 0, 3, 11])

    def rope(kv, gamma, cos, sin, index, k_cache, ckv_cache):
        options = {"cache_mode": "PA_BNSD", "is_output_kv": True}
        keys, latents, new_k, new_ckv = ops.npu_kv_rmsnorm_rope_cache_v2_functional(
            kv, gamma, cos, sin, index, k_cache, ckv_cache, **options
        )
        seen = new_k.sum() + new_ckv.sum()
        k_cache.copy_(new_k)
        ckv_cache.copy_(new_ckv)
        return keys, latents, seen

    angles = [tensor((2, 1, 2, ROPE), torch.float16) for _ in range(2)]
    caches = [tensor((3, BLOCK, 1, size), torch.float16) for size in (ROPE, NORM)]
    args = tensor((2, 1, 2, NORM + ROPE), torch.float16), tensor((NORM,), torch.float16), *angles, index, *caches
    module = assert_same_numbers(reinplace_input_mutated_ops, rope, *args)
    assert "npu.npu_kv_rmsnorm_rope_cache_v2.default" in targets(module)
    assert "aten.copy_.default" not in targets(module)

    def latent(*args):
        *inputs, index, kv_cache, kr_cache = args
        query, _, _, _, _, new_kv, new_kr = ops.npu_mla_prolog_v3_functional(
            *inputs, kv_cache, kr_cache, cache_index=index
        )
        seen = new_kv.sum() + new_kr.sum()
        kv_cache.copy_(new_kv)
        kr_cache.copy_(new_kr)
        return query, seen

    *inputs, kv_cache, kr_cache = prolog((4,), "PA_BSND")
    module = assert_same_numbers(reinplace_input_mutated_ops, latent, *inputs, index, kv_cache, kr_cache)
    assert "npu.npu_mla_prolog_v3.default" in targets(module)
    assert "aten.copy_.default" not in targets(module)


def test_what_is_not_served_is_refused_by_name():
    kv, gamma, angle = torch.zeros(1, 1, 1, 48).half(), torch.ones(32).half(), torch.ones(1, 1, 1, 16).half()
    caches = torch.zeros(1, 4, 1, 16).half(), torch.zeros(1, 4, 1, 32).half()
    args = kv, gamma, angle, angle, torch.zeros(1, dtype=torch.int64), *caches
    one = torch.ones(1)
    for wrong, said in (
        ({"cache_mode": "PA_BLK_BNSD"}, "PA_BLK_BNSD"),
        ({"k_rope_scale": one}, "k_rope_scale"),
        ({"v": kv}, "no v"),
        ({"k_cache_dtype": 1}, "k_cache_dtype"),
    ):
        for name in ("npu_kv_rmsnorm_rope_cache_v2", "npu_kv_rmsnorm_rope_cache_v2_functional"):
            with pytest.raises(Unserved, match=said):
                op(name)(*args, **{"cache_mode": "PA"} | wrong)
    with pytest.raises(Unserved, match="dtype of kv"):
        ops.npu_kv_rmsnorm_rope_cache_v2(*args[:5], *(cache.to(torch.int8) for cache in caches), cache_mode="PA")
    with pytest.raises(ValueError, match="negative"):
        caches = torch.zeros(1, 1, 4, 16).half(), torch.zeros(1, 1, 4, 32).half()
        ops.npu_kv_rmsnorm_rope_cache_v2(*args[:4], torch.tensor([[-1]]), *caches)
    args = prolog((4,), "PA_BSND")
    for wrong, said in (
        ({"cache_mode": "PA_BLK_NZ"}, "PA_BLK_NZ"),
        ({"weight_quant_mode": 1}, "weight_quant_mode"),
        ({"kv_cache_quant_mode": 2}, "kv_cache_quant_mode"),
        ({"smooth_scales_cq": one}, "smooth_scales_cq"),
        ({"actual_seq_len": one}, "actual_seq_len"),
    ):
        with pytest.raises(Unserved, match=said):
            ops.npu_mla_prolog_v3(*args, cache_index=torch.arange(4), **wrong)
    with pytest.raises(Unserved, match="bfloat16"):
        ops.npu_mla_prolog_v3(*(arg.half() for arg in args), cache_index=torch.arange(4))
    with pytest.raises(Unserved, match="cache_index"):
        ops.npu_mla_prolog_v3(*args)
