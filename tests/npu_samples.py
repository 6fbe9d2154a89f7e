"""Arguments for the npu ops in many shapes and dtypes, for comparing schemas, shapes and numbers."""

import itertools
from collections.abc import Iterator

import torch

from aotair.fusion.alike import AlikeRanks
from aotair_runtime.devices.groups import register

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)
ALIKE = register(AlikeRanks(2), "alike")  # the name of two ranks that have the same numbers
SHAPES = ((4, 8), (2, 3, 8), (1, 1, 2), (2, 1, 3, 32), (5, 16))


def tensor(shape, dtype) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def op(name: str) -> torch._ops.OpOverload:
    """The op of `name` or `name.overload`."""
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.npu, base), overload or "default")


def int8(*shape) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def norms() -> Iterator[tuple]:
    for shape, dtype in itertools.product(SHAPES, FLOATS):
        x, gamma = tensor(shape, dtype), tensor(shape[-1:], dtype)
        yield "npu_rms_norm", (x, gamma), {}
        yield "npu_rms_norm", (x, tensor(shape[-2:], dtype), 1e-5), {}
        for name in ("npu_add_rms_norm", "npu_add_rms_norm_v2_functional", "npu_add_rms_norm_v2"):
            yield name, (x, tensor(shape, dtype), gamma, 1e-5), {}
        if dtype in HALVES:
            yield "npu_add_rms_norm_cast", (x, tensor(shape, dtype), gamma), {}


def quantised() -> Iterator[tuple]:
    for shape, dtype in itertools.product(SHAPES, HALVES):
        x, gamma = tensor(shape, dtype), tensor(shape[-1:], dtype)
        scales, zero = torch.rand(shape[-1:]) + 0.5, torch.zeros(shape[-1:], dtype=torch.int32)
        yield "npu_dynamic_quant", (x,), {}
        yield "npu_dynamic_quant", (x,), {"smooth_scales": gamma}
        yield "npu_add_rms_norm_dynamic_quant", (x, x, gamma), {"smooth_scale1": gamma, "output_mask": [True, False]}
        yield "npu_add_rms_norm_dynamic_quant", (x, x, gamma), {"smooth_scale1": gamma, "smooth_scale2": gamma}
        second = {"smooth_scale2": gamma, "output_mask": [False, True]}
        for kwargs in ({}, second, {"output_mask": [False, True]}, {"output_mask": [True, True]}):
            yield "npu_add_rms_norm_dynamic_quant", (x, x, gamma), kwargs
        yield "npu_add_rms_norm_quant", (x, x, gamma, scales, zero), {}
        yield "npu_add_rms_norm_quant", (x, x, gamma, scales, None), {"axis": -1, "epsilon": 1e-5}
        yield "npu_quantize", (x, scales, zero.float(), 1, -1), {}
        yield "npu_quantize", (x, scales[:1], None, 1, -1, False), {}


def others() -> Iterator[tuple]:
    for dtype in FLOATS:
        for batch, m, k, n in ((2, 3, 4, 5), (1, 128, 8, 128)):
            left, right = tensor((batch, m, k), dtype), tensor((batch, k, n), dtype)
            yield "npu_transpose_batchmatmul", (left, right), {}
            turned = left.transpose(0, 1).contiguous()
            yield "npu_transpose_batchmatmul", (turned, right), {"perm_x1": [1, 0, 2]}
        for shape in SHAPES:
            yield "npu_swiglu", (tensor(shape, dtype),), {}
            yield "npu_swiglu", (tensor((4, *shape), dtype), 0), {}
            yield "npu_geglu", (tensor(shape, dtype),), {}
            yield "npu_geglu", (tensor((4, *shape), dtype), 0, 0, True), {}
            yield "_npu_dtype_cast", (tensor(shape, dtype), torch.float32), {}
        x, angles = tensor((2, 3, 4, 8), dtype), tensor((1, 3, 1, 8), dtype)
        for mode in ("half", "interleave"):
            yield "npu_rotary_mul", (x, angles, angles, mode), {}
        yield "npu_rotary_mul", (x, angles, angles), {}
        for shape, k in (((5, 8), 2), ((2, 3, 16), 4), ((1, 4), 1)):
            yield "npu_moe_gating_top_k_softmax", (tensor(shape, dtype), None, k), {}
            finished = torch.zeros(shape[:-1], dtype=torch.bool)
            finished[0] = True
            yield "npu_moe_gating_top_k_softmax", (tensor(shape, dtype), finished, k), {}


def experts() -> Iterator[tuple]:
    """Gates, routes and sums of mixtures of experts."""
    for dtype in FLOATS:
        for groups, kept in ((1, 1), (4, 2)):
            for norm, mode in ((1, 1), (0, 0)):
                x, bias = tensor((6, 16), dtype), tensor((16,), dtype)
                options = {"group_count": groups, "k_group": kept, "norm_type": norm, "group_select_mode": mode}
                yield "npu_moe_gating_top_k", (x, 4), options
                yield "npu_moe_gating_top_k", (x, 2), options | {"bias": bias, "routed_scaling_factor": 2.5}
        for k, options in ((2, {"renorm": 1}), (3, {}), (2, {"output_softmax": True})):
            yield "npu_moe_gating_top_k_softmax_v2", (tensor((5, 8), dtype),), {"k": k} | options
        chosen = torch.tensor([[3, 0], [1, 3], [3, 1], [0, 5], [2, 3]], dtype=torch.int32)
        options = {"expert_num": 8, "expert_tokens_num_type": 1, "expert_tokens_num_flag": True}
        for more in ({}, {"active_num": 10, "active_expert_range": [0, 8]}):
            yield "npu_moe_init_routing_v2", (tensor((5, 8), dtype), chosen), options | more
        places = torch.randperm(10).to(torch.int32)
        yield "npu_moe_token_unpermute", (tensor((10, 8), dtype), places, torch.rand(5, 2).to(dtype)), {}
        yield "npu_moe_token_unpermute", (tensor((10, 8), dtype), places), {}


def caches() -> Iterator[tuple]:
    for dtype, index in itertools.product(FLOATS, (torch.int32, torch.int64)):
        for name in ("npu_scatter_nd_update", "npu_scatter_nd_update_"):
            yield name, (tensor((6, 4), dtype), torch.tensor([[1], [3]], dtype=index), tensor((2, 4), dtype)), {}
            place = torch.tensor([[1, 2], [3, 0]], dtype=index)
            yield name, (tensor((6, 4, 3), dtype), place, tensor((2, 3), dtype)), {}
        for name in ("scatter_update", "scatter_update_"):
            at = torch.tensor([1, 3], dtype=index)
            yield name, (tensor((2, 4, 8, 3), dtype), at, tensor((2, 4, 1, 3), dtype), -2), {}
            yield name, (tensor((2, 8, 3), dtype), at, tensor((2, 2, 3), dtype), 1), {}


# For each layout the shapes of queries and of keys, 4 and 2 heads of 8: two sequences, 5 queries and 7 keys, or one of
# these or the 5 and 7 tokens of both.
LAYOUTS = {
    **dict.fromkeys(("BNSD", "BNSD_BSND", "BNSD_NBSD"), ((2, 4, 5, 8), (2, 2, 7, 8))),
    **dict.fromkeys(("BSND", "BSND_BNSD", "BSND_NBSD"), ((2, 5, 4, 8), (2, 7, 2, 8))),
    **dict.fromkeys(("BSH", "BSH_BNSD", "BSH_NBSD"), ((2, 5, 32), (2, 7, 16))),
    **dict.fromkeys(("TND", "TND_NTD"), ((5, 4, 8), (7, 2, 8))),
    **dict.fromkeys(("NTD", "NTD_TND"), ((4, 5, 8), (2, 7, 8))),
    "NSD": ((4, 5, 8), (2, 7, 8)),
}
CAUSAL = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
NAMES_V2 = {
    "num_heads": "num_query_heads",
    "scale": "softmax_scale",
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "softmax_lse_flag": "return_softmax_lse",
}


def of_v2(kwargs: dict) -> dict:
    """The second version's names of arguments of the first."""
    return {NAMES_V2.get(name, name): value for name, value in kwargs.items()}


def attention_cases() -> Iterator[tuple[tuple, dict]]:
    """(query, key, value) and keyword arguments of the first version, in which every query sees something."""
    for (layout, (queries, keys)), dtype, lse in itertools.product(LAYOUTS.items(), FLOATS, (False, True)):
        args = tensor(queries, dtype), tensor(keys, dtype), tensor(keys, dtype)
        heads = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": layout, "softmax_lse_flag": lse}
        tokens = layout.startswith(("TND", "NTD"))
        lengths = [[2, 5], [3, 7]] if tokens else [[3, 5], [4, 7]]
        some = dict(zip(("actual_seq_lengths", "actual_seq_lengths_kv"), lengths))
        if layout == "NSD":
            some = {"actual_seq_lengths": [4], "actual_seq_lengths_kv": [6]}
        if not tokens:
            yield args, heads | {"scale": 0.3}
            yield args, heads | {"atten_mask": torch.zeros(5, 7, dtype=torch.bool)}
        yield args, heads | some
        yield args, heads | some | {"sparse_mode": 3, "atten_mask": CAUSAL}
    for shape in ((4, 3, 16), (4, 2, 3, 8)):
        cache, table = tensor(shape, torch.float16), torch.tensor([[0, 2, 1], [3, 1, 0]], dtype=torch.int32)
        paged = {"block_table": table, "block_size": 3, "actual_seq_lengths_kv": [4, 7], "num_key_value_heads": 2}
        query = tensor((2, 1, 32), torch.float16)
        yield (query, cache, cache), {"num_heads": 4, "softmax_lse_flag": True} | paged
        query = tensor((2, 4, 1, 8), torch.float16)
        yield (query, cache, cache), {"num_heads": 4, "input_layout": "BNSD"} | paged
        query = tensor((5, 4, 8), torch.float16)
        yield (query, cache, cache), {"num_heads": 4, "input_layout": "TND", "actual_seq_lengths": [2, 5]} | paged
    query, key, value = tensor((2, 4, 5, 8), torch.float16), *(tensor((2, 1, 7, 8), torch.float16) for _ in range(2))
    ropes = {"query_rope": tensor((2, 4, 5, 4), torch.float16), "key_rope": tensor((2, 1, 7, 4), torch.float16)}
    yield (query, key, value), {"num_heads": 4, "num_key_value_heads": 1, "input_layout": "BNSD"} | ropes
    key, value = tensor((2, 4, 7, 16), torch.float16), tensor((2, 4, 7, 8), torch.float16)
    yield (tensor((2, 4, 5, 16), torch.float16), key, value), {"num_heads": 4, "input_layout": "BNSD"}


def attention() -> Iterator[tuple]:
    first, inferred = "npu_fused_infer_attention_score", ("input_layout", "block_table", "num_key_value_heads")
    for (query, key, value), kwargs in attention_cases():
        for name, named in ((first, kwargs), (first + "_v2", of_v2(kwargs))):
            yield name, (query, key, value), named
            yield f"_{name}_get_max_workspace", (query, key, value), named
            kept = (*inferred, "num_heads", "num_query_heads", "softmax_lse_flag", "return_softmax_lse", "query_rope")
            some = {key: value for key, value in named.items() if key in kept}
            yield f"_{name}_infer_output", (query, value), some
            out = [torch.zeros_like(result) for result in op(name)(query, key, value, **named)]
            yield f"{name}.out", (query, key, value), named | {"out": out}
            yield f"{name}.out", (query, key, value), named | {"out": out, "workspace": torch.zeros(1)}


def quantised_products() -> Iterator[tuple]:
    name, half, bf16, whole = "npu_quant_matmul", 5, 15, 3
    for left, right in (((3, 8), (8, 5)), ((2, 3, 8), (8, 5)), ((2, 1, 3, 8), (4, 8, 5)), ((1, 2048), (2048, 16))):
        args, n = (int8(*left), int8(*right)), right[-1]
        for scale in (torch.rand(n) / 100, torch.rand(1) / 100):
            yield name, (*args, scale), {"output_dtype": half}
            yield name, (*args, scale), {"output_dtype": bf16, "pertoken_scale": torch.rand(left[-2])}
            yield name, (*args, scale.bfloat16()), {"output_dtype": bf16, "bias": torch.rand(n)}
            yield name, (*args, scale), {"offset": torch.rand(1)}
            bias = torch.randint(-9, 9, (n,), dtype=torch.int32)
            for output in (half, bf16, whole, 1):
                yield name, (*args, scale), {"output_dtype": output, "bias": bias}
    bias = torch.randint(-9, 9, (2, 1, 5), dtype=torch.int32)
    yield name, (int8(2, 3, 8), int8(2, 8, 5), torch.rand(5)), {"output_dtype": half, "bias": bias}


def grouped_products() -> Iterator[tuple]:
    name = "npu_grouped_matmul"
    for dtype, kind in itertools.product(FLOATS, (0, 1)):
        x, experts = tensor((7, 8), dtype), tensor((3, 8, 5), dtype)
        groups = torch.tensor([2, 2, 6] if kind == 0 else [2, 0, 4])
        one = {"group_list": groups, "group_list_type": kind, "group_type": 0}
        for item in (2, 3):
            yield name, ([x], [experts]), one | {"split_item": item}
            yield name, ([x], list(experts.unbind())), one | {"split_item": item}
            bias = tensor((3, 5), dtype)
            yield name, ([x], [experts]), one | {"split_item": item, "bias": [bias], "output_dtype": 6}
        both = [tensor((2, 8), dtype), tensor((4, 3), dtype)], [tensor((8, 5), dtype), tensor((3, 5), dtype)]
        for item in (0, 2, 3):
            yield name, both, {"split_item": item, "group_type": -1}
        yield f"{name}.List", both, {"split_item": 0, "group_type": -1}
        yield f"{name}.List", both, {"split_item": 2, "group_type": -1}
        several = [x], list(experts.unbind())
        yield f"{name}.List", several, {"split_item": 1, "group_list": [2, 4, 7]}
        yield f"{name}.List", several, {"split_item": 3, "group_list": [2, 4, 7], "bias": [tensor((5,), dtype)] * 3}
        quantised = {"scale": [torch.rand(3, 5)], "per_token_scale": [torch.rand(7)], "output_dtype": 15}
        yield name, ([int8(7, 8)], [int8(3, 8, 5)]), one | quantised | {"split_item": 3}
        yield name, ([int8(7, 8)], [int8(3, 8, 5)]), one | {"split_item": 3, "output_dtype": 3}
        if dtype in HALVES:
            factors = {"antiquant_scale": [tensor((3, 5), dtype)], "antiquant_offset": [tensor((3, 5), dtype)]}
            yield name, ([x], [int8(3, 8, 5)]), one | factors | {"split_item": 3}


def latent_caches() -> Iterator[tuple]:
    """Tokens and caches of multi-head latent attention: norm 32, rope 16."""
    paged = torch.tensor([5, 0, 8, -1])
    for dtype, mode, output in itertools.product(HALVES, ("Norm", "PA", "PA_BNSD", "PA_NZ"), (False, True)):
        caches = [tensor((2, 1, 6, size) if mode == "Norm" else (3, 4, 1, size), dtype) for size in (16, 32)]
        index = torch.tensor([[1, 2], [5, 0]]) if mode == "Norm" else paged
        angles = tensor((2, 1, 2, 16), dtype), tensor((2, 1, 2, 16), dtype)
        args = tensor((2, 1, 2, 48), dtype), tensor((32,), dtype), *angles, index, *caches
        for name in ("npu_kv_rmsnorm_rope_cache_v2", "npu_kv_rmsnorm_rope_cache_v2_functional"):
            yield name, args, {"cache_mode": mode, "is_output_kv": output, "epsilon": 1e-6}
    for batched, mode, flag in itertools.product((False, True), ("PA_BSND", "PA_NZ", "tokens"), (False, True)):
        lead = (2, 2) if batched else (4,)
        shapes = (*lead, 24), (24, 12), (12, 3 * (8 + 16)), (3, 8, 32), (24, 32 + 16), (12,), (32,)
        shapes += (*lead, 16), (*lead, 16)
        shapes += tuple((*lead, 1, size) if mode == "tokens" else (3, 4, 1, size) for size in (32, 16))
        kwargs = {"query_norm_flag": flag, "qc_qr_scale": 2.0, "kc_scale": 0.5}
        kwargs["cache_mode"] = mode if mode != "tokens" else "BSND" if batched else "TND"
        if mode != "tokens":
            kwargs["cache_index"] = paged.view(lead)
        for name in ("npu_mla_prolog_v3", "npu_mla_prolog_v3_functional"):
            yield name, tuple(tensor(shape, torch.bfloat16) for shape in shapes), kwargs


def quantised_weights() -> Iterator[tuple]:
    """A weight of int8, also turned, or of int4 in int32; scales for all, for each column, or for groups of rows."""
    name = "npu_weight_quant_batchmatmul"
    for dtype, (m, k, n) in itertools.product(HALVES, ((3, 64, 16), (1, 96, 8), (5, 128, 64))):
        x = tensor((m, k), dtype)
        bias = tensor((n,), torch.float16 if dtype == torch.float16 else torch.float32)
        packed = torch.randint(-(2**31), 2**31, (k, n // 8), dtype=torch.int32)
        for weight in (int8(k, n), int8(n, k).t(), packed):
            for shape in ((1,), (1, 1), (n,), (1, n)):
                yield name, (x, weight, tensor(shape, dtype)), {}
                yield name, (x, weight, tensor(shape, dtype), tensor(shape, dtype)), {"bias": bias}
            groups = {"antiquant_group_size": 32}
            yield name, (x, weight, tensor((k // 32, n), dtype)), groups
            yield name, (x, weight, tensor((k // 32, n), dtype), tensor((k // 32, n), dtype)), groups | {"bias": bias}


def meeting() -> Iterator[tuple]:
    for (m, k, n), dtype in itertools.product(((4, 8, 5), (2, 256, 16)), HALVES):
        left, right = tensor((m, k), dtype), tensor((k, n), dtype)
        yield "npu_mm_all_reduce_base", (left, right, ALIKE), {}
        yield "npu_mm_all_reduce_base", (left.view(1, m, k), tensor((n, k), dtype).t(), ALIKE), {"reduce_op": "sum"}
        for kwargs in ({}, {"comm_mode": "aiv"}):
            yield "npu_mm_reduce_scatter_base", (left, right, ALIKE, 2), kwargs
            yield "npu_all_gather_base_mm", (left, right, ALIKE, 2), kwargs
        yield "npu_all_gather_base_mm", (left, right, ALIKE, 2), {"gather_output": False}


GROUPS = (
    *(norms, quantised, others, experts, caches, attention),
    *(quantised_products, quantised_weights, grouped_products, latent_caches, meeting),
)


def samples() -> Iterator[tuple[str, tuple, dict]]:
    """(name, positional arguments, keyword arguments)."""
    for group in GROUPS:
        yield from group()
