"""The host kernels of torch_npu's ops: their numbers against formulas written apart, and models that call them."""

import npu_samples
import pytest
import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from aotair.ops import npu
from aotair.ops.registry import Unserved
from aotair_runtime.artifact.open import read_program

ops = torch.ops.npu


def test_every_op_runs_on_its_samples_and_leaves_functional_arguments_alone():
    seen = set()
    for name, args, kwargs in npu_samples.samples():
        op = npu_samples.op(name)
        written = {argument.name for argument in op._schema.arguments if argument.alias_info} | {"out"}
        given = dict(zip((argument.name for argument in op._schema.arguments), args)) | kwargs
        kept = {name: value for name, value in given.items() if name not in written}
        before = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, kept)
        result = op(*args, **kwargs)
        first, *others = tree_leaves(result)
        assert first.isfinite().all() and not any(t.isnan().any() for t in others), name
        for old, new in zip(tree_leaves(before), tree_leaves(kept), strict=True):
            assert not isinstance(old, torch.Tensor) or torch.equal(old, new), f"{name} wrote into an argument"
        seen.add(name)
    assert seen == {op.name for op in npu.OPS}


@pytest.mark.parametrize("dtype", npu_samples.FLOATS)
def test_rms_norms(dtype):
    x, other, gamma = (npu_samples.tensor(shape, dtype) for shape in ((3, 5, 8), (3, 5, 8), (8,)))
    close = {"rtol": 2e-3, "atol": 2e-3} if dtype != torch.bfloat16 else {"rtol": 2e-2, "atol": 2e-2}
    y, rstd = ops.npu_rms_norm(x, gamma, 1e-5)
    want = functional.rms_norm(x.double(), (8,), gamma.double(), 1e-5)
    torch.testing.assert_close(y.double(), want, **close)
    torch.testing.assert_close(
        rstd[..., 0].double(), (x.double().square().mean(-1) + 1e-5).rsqrt(), rtol=1e-5, atol=1e-5
    )
    normed, _, total = ops.npu_add_rms_norm(x, other, gamma, 1e-5)
    assert torch.equal(total, x + other)
    sums = x + other
    rounded = (sums.float() * (sums.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt()).to(dtype)
    assert torch.equal(normed, (rounded.float() * gamma.float()).to(dtype)), "rounded before gamma, and after"
    torch.testing.assert_close(normed, ops.npu_rms_norm(sums, gamma, 1e-5)[0], rtol=2 * torch.finfo(dtype).eps, atol=0)
    rstd, first, second = ops.npu_add_rms_norm_v2_functional(x, other, gamma, 1e-5)
    assert torch.equal(first, normed) and torch.equal(second, total)
    a, b = x.clone(), other.clone()
    assert torch.equal(ops.npu_add_rms_norm_v2(a, b, gamma, 1e-5), rstd)
    assert torch.equal(a, normed) and torch.equal(b, total)
    wide, same, _, _ = ops.npu_add_rms_norm_cast(x, other, gamma, 1e-5)
    assert torch.equal(wide, same.float()) and torch.equal(same, normed)


def test_dynamic_quantisation_is_within_half_a_step():
    x, smooth = npu_samples.tensor((4, 6, 16), torch.float16), torch.rand(16).half() + 0.5
    q, scale = ops.npu_dynamic_quant(x)
    assert ((q * scale[..., None] - x.float()).abs() <= scale[..., None] / 2 + 1e-6).all()
    assert (q.abs().amax(-1) == 127).all()
    q, scale = ops.npu_dynamic_quant(x, smooth_scales=smooth)
    assert ((q * scale[..., None] - x.float() * smooth.float()).abs() <= scale[..., None] / 2 + 1e-6).all()
    zeros, scale = ops.npu_dynamic_quant(torch.zeros(2, 4).half())
    assert not zeros.any() and not scale.any()
    groups = torch.stack([smooth, smooth * 2])
    q, scale = ops.npu_dynamic_quant(x[0], smooth_scales=groups, group_index=torch.tensor([2, 6], dtype=torch.int32))
    want = x[0].float() * groups.float()[torch.tensor([0, 0, 1, 1, 1, 1])]
    assert ((q * scale[..., None] - want).abs() <= scale[..., None] / 2 + 1e-6).all()
    with pytest.raises(Unserved, match="pertoken"):
        ops.npu_dynamic_quant(x, quant_mode="pertensor")


def test_fused_quantisations_are_the_ops_apart():
    x, other, gamma = (npu_samples.tensor(shape, torch.float16) for shape in ((4, 8), (4, 8), (8,)))
    y, _, total = ops.npu_add_rms_norm(x, other, gamma)
    q, _, x_out, scale, _ = ops.npu_add_rms_norm_dynamic_quant(x, other, gamma, output_mask=[True, False])
    want, want_scale = ops.npu_dynamic_quant(y)
    assert torch.equal(q, want) and torch.equal(scale, want_scale) and torch.equal(x_out, total)
    scales, zero = torch.rand(8) + 0.1, torch.full((8,), 3.0)
    q, _, x_out = ops.npu_add_rms_norm_quant(x, other, gamma, scales, zero)
    assert torch.equal(q, ops.npu_quantize(y, scales, zero, 1, -1)) and torch.equal(x_out, total)
    by_hand = torch.clamp(torch.round(y.float() / scales + 3), -128, 127).to(torch.int8)
    assert torch.equal(q, by_hand)
    assert torch.equal(
        ops.npu_quantize(y, scales, None, 0, -1), (y.float() / scales).round().clamp(0, 255).to(torch.uint8)
    )


def test_products_and_gates():
    left, right = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    torch.testing.assert_close(ops.npu_transpose_batchmatmul(left, right), torch.bmm(left, right).transpose(0, 1))
    turned = left.transpose(0, 1).contiguous()
    got = ops.npu_transpose_batchmatmul(turned, right, perm_x1=[1, 0, 2])
    torch.testing.assert_close(got, torch.bmm(left, right).transpose(0, 1))
    x = torch.randn(3, 8)
    torch.testing.assert_close(ops.npu_swiglu(x), functional.silu(x[:, :4]) * x[:, 4:])
    for number, approximate in ((0, "none"), (1, "tanh")):
        left, right = (functional.gelu(half, approximate=approximate) for half in (x[:, :4], x[:, 4:]))
        for flag, active, other in ((False, right, x[:, :4]), (True, left, x[:, 4:])):
            got = ops.npu_geglu(x, -1, number, flag)
            torch.testing.assert_close(list(got), [active * other, active])
    weights, experts, rows = ops.npu_moe_gating_top_k_softmax(x, None, 2)
    want = torch.softmax(x, -1).topk(2)
    torch.testing.assert_close(weights, want.values)
    assert torch.equal(experts.long(), want.indices)
    assert rows.tolist() == [[0, 3], [1, 4], [2, 5]]
    finished = torch.tensor([False, True, False])
    assert (ops.npu_moe_gating_top_k_softmax(x, finished, 2)[1][1] == 8).all()


def test_gates_by_hand():
    """Row by row and group by group, in float64."""
    x, bias, k, kept = torch.randn(4, 12), torch.randn(12), 3, 2
    for norm, mode in ((0, 0), (1, 1)):
        weights, experts, scores = ops.npu_moe_gating_top_k(
            x,
            k,
            bias=bias,
            k_group=kept,
            group_count=3,
            group_select_mode=mode,
            norm_type=norm,
            routed_scaling_factor=2.0,
        )
        for row in range(4):
            own = x[row].double().sigmoid() if norm else x[row].double().softmax(-1)
            choice = {expert: own[expert].item() + bias[expert].item() for expert in range(12)}
            parts = [sorted((choice[expert] for expert in range(4 * g, 4 * g + 4)), reverse=True) for g in range(3)]
            judged = [part[0] + part[1] if mode else part[0] for part in parts]
            best = sorted(range(3), key=judged.__getitem__, reverse=True)[:kept]
            among = [expert for expert in range(12) if expert // 4 in best]
            want = sorted(among, key=choice.__getitem__, reverse=True)[:k]
            assert experts[row].tolist() == want
            total = sum(own[expert].item() for expert in want) if norm else 1
            close = torch.tensor([2 * own[expert].item() / total for expert in want])
            torch.testing.assert_close(weights[row], close.float())
            torch.testing.assert_close(scores[row], own.float())
    weights, experts, none = ops.npu_moe_gating_top_k_softmax_v2(x, k=k, renorm=1)
    want = x.topk(k)
    torch.testing.assert_close(weights, want.values.softmax(-1))
    assert torch.equal(experts.long(), want.indices) and none.numel() == 0
    every = ops.npu_moe_gating_top_k_softmax_v2(x, k=k, output_softmax=True)[2]
    torch.testing.assert_close(every, x.softmax(-1))


def test_routes_by_hand():
    experts = torch.tensor([[2, 0], [0, 3], [2, 3]], dtype=torch.int32)
    x = torch.tensor([[10.0], [20.0], [30.0]])
    options = {"expert_num": 5, "expert_tokens_num_type": 1, "expert_tokens_num_flag": True}
    rows, places, counts, _ = ops.npu_moe_init_routing_v2(x, experts, **options)
    assert rows.flatten().tolist() == [10, 20, 10, 30, 20, 30]  # experts 0, 0, 2, 2, 3, 3
    assert places.tolist() == [2, 0, 1, 4, 3, 5] and counts.tolist() == [2, 0, 2, 2, 0]
    probs = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    got = ops.npu_moe_token_unpermute(rows, places, probs)
    assert got.flatten().tolist() == [30, 140, 330]
    assert torch.equal(ops.npu_moe_token_unpermute(rows, places), rows[places.long()])
    with pytest.raises(Unserved, match="takes an expert_idx of int32"):
        ops.npu_moe_init_routing_v2(x, experts.long(), **options)
    with pytest.raises(Unserved, match="all experts for active"):
        ops.npu_moe_init_routing_v2(x, experts, **options, active_expert_range=[0, 2])
    with pytest.raises(Unserved, match="no finished"):
        ops.npu_moe_gating_top_k_softmax_v2(x, finished=torch.tensor([True, False, False]))


def test_rotations():
    x, angle = torch.randn(2, 3, 8), torch.randn(3, 4)
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
    a, b = x[..., :4], x[..., 4:]
    want = torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
    torch.testing.assert_close(ops.npu_rotary_mul(x, cos, sin), want)
    cos, sin = angle.cos().repeat_interleave(2, -1), angle.sin().repeat_interleave(2, -1)
    turned = torch.view_as_complex(x.view(2, 3, 4, 2)) * torch.polar(torch.ones(3, 4), angle)
    torch.testing.assert_close(ops.npu_rotary_mul(x, cos, sin, "interleave"), torch.view_as_real(turned).flatten(-2))


def test_scatters():
    cache, updates = torch.zeros(2, 5, 3), torch.randn(2, 2, 3)
    got = ops.scatter_update(cache, torch.tensor([0, 3]), updates, 1)
    assert torch.equal(got[0, :2], updates[0]) and torch.equal(got[1, 3:], updates[1]) and not cache.any()
    got = ops.scatter_update(cache, torch.tensor([[1, 2], [0, 1]]), updates, -2)
    assert torch.equal(got[1, 2:4], updates[0]) and torch.equal(got[0, 1:3], updates[1])
    table, rows = torch.zeros(4, 3), torch.randn(2, 3)
    assert ops.npu_scatter_nd_update_(table, torch.tensor([[3], [1]]), rows) is not None
    assert torch.equal(table[3], rows[0]) and torch.equal(table[1], rows[1])


# ---- models ----------------------------------------------------------------------------------------------------------


def test_a_model_of_npu_ops_answers_like_itself(node, original):
    model, reference = node.load("npu_block", enable_output_clone=True), original("npu_block")
    for n in (2, 4):
        x, residual = torch.randn(n, 16), torch.randn(n, 16)
        mine, theirs = torch.zeros(8, 16), torch.zeros(8, 16)
        at = torch.arange(n)[:, None]
        for got, want in zip(model(x, residual, mine, at), reference(x, residual, theirs, at), strict=True):
            torch.testing.assert_close(got, want)
        torch.testing.assert_close(mine, theirs)


def test_the_reinplace_table_knows_them(built):
    names = {op.name for op in read_program(built("npu_block")).ops}
    assert "npu::npu_add_rms_norm_v2" in names and "npu::npu_add_rms_norm_v2_functional" not in names
    assert "npu::npu_scatter_nd_update_" in names and "npu::npu_scatter_nd_update" not in names
