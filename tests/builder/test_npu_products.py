"""The host kernels of quantised and grouped products, against products of integers and loops over experts."""

import pytest
import torch
from npu_samples import ALIKE, FLOATS, int8, tensor

import aotair.ops.npu  # noqa: F401
from aotair.ops.registry import Unserved

quant_matmul = torch.ops.npu.npu_quant_matmul
grouped = torch.ops.npu.npu_grouped_matmul
HALF, FLOAT, BF16, INT8, INT32 = 5, 6, 15, 1, 3


@pytest.mark.parametrize("k", [8, 1024, 1025, 40000])
def test_int8_products_are_exact(k):
    left, right = int8(3, k), int8(k, 5)
    left[0], right[:, 0] = -128, -128
    want = left.long() @ right.long()
    bias = torch.arange(5, dtype=torch.int32)
    got = quant_matmul(left, right, torch.full((1,), 7.0), output_dtype=INT32, bias=bias)
    assert got.dtype == torch.int32 and torch.equal(got.long(), want + bias), "int32 leaves the scale out"
    assert torch.equal(grouped([left], [right], split_item=2, group_type=-1, output_dtype=INT32)[0].long(), want)


def test_scales_and_biases_and_offsets():
    left, right = int8(2, 3, 16), int8(16, 5)
    product = (left.long() @ right.long()).double()
    scale, rows, bias, whole = torch.rand(5) / 99, torch.rand(3), torch.randn(5), torch.arange(5, dtype=torch.int32)
    for output, dtype in ((HALF, torch.float16), (BF16, torch.bfloat16)):
        got = quant_matmul(left, right, scale, pertoken_scale=rows, bias=bias, output_dtype=output)
        torch.testing.assert_close(got, (product * scale * rows[:, None] + bias).to(dtype))
        got = quant_matmul(left, right, scale[:1], bias=whole, output_dtype=output)
        torch.testing.assert_close(got, ((product + whole) * scale[:1]).to(dtype))
    got = quant_matmul(left, right, scale.bfloat16(), bias=bias.bfloat16(), output_dtype=BF16)
    torch.testing.assert_close(got, (product * scale.bfloat16().double() + bias.bfloat16()).bfloat16())
    scale = torch.full((5,), 2.0**-6)
    for offset in (torch.tensor([3.0]), torch.arange(5.0)):
        want = torch.round(product / 64 + offset).clamp(-128, 127).to(torch.int8)
        assert torch.equal(quant_matmul(left, right, scale, offset=offset), want)
        assert torch.equal(quant_matmul(left, right, scale, offset=offset, output_dtype=INT8), want)
    bias = torch.arange(10, dtype=torch.int32).view(2, 1, 5)
    batched = quant_matmul(left, int8(2, 16, 5), scale, bias=bias, output_dtype=HALF)
    assert batched.shape == (2, 3, 5)


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"x1": torch.zeros(3, 8, dtype=torch.int32)}, Unserved, "x1 and x2"),
        ({"scale": torch.ones(5, dtype=torch.int64)}, Unserved, "scale"),
        ({"scale": torch.ones(1, 5)}, Unserved, "scale"),
        ({"pertoken_scale": torch.ones(3)}, Unserved, "pertoken_scale"),
        ({"output_dtype": FLOAT}, Unserved, "output_dtype=6"),
        ({"group_sizes": [0, 0, 128]}, Unserved, "group_sizes"),
        ({"y_scale": torch.ones(1)}, Unserved, "y_scale"),
        ({"output_dtype": HALF, "offset": torch.ones(1)}, ValueError, "offset"),
        ({"output_dtype": INT32, "bias": torch.ones(5)}, ValueError, "bias"),
    ],
)
def test_what_quant_matmul_does_not_serve_it_refuses(wrong, error, said):
    with pytest.raises(error, match=said):
        quant_matmul(**{"x1": int8(3, 8), "x2": int8(8, 5), "scale": torch.ones(5)} | wrong)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("stacked", [True, False])
def test_each_group_of_rows_meets_its_expert(dtype, kind, stacked):
    x, weight, bias = tensor((9, 8), dtype), tensor((4, 8, 5), dtype), tensor((4, 5), dtype)
    sizes = [3, 0, 4, 1]
    groups = torch.tensor(sizes if kind == 1 else [3, 3, 7, 8])
    lists = {"weight": [weight], "bias": [bias]} if stacked else {"weight": list(weight), "bias": list(bias)}
    (got,) = grouped([x], **lists, group_list=groups, group_list_type=kind, group_type=0, split_item=3)
    experts = [number for number, size in enumerate(sizes) for _ in range(size)]
    want = [x[row].double() @ weight[expert].double() + bias[expert] for row, expert in enumerate(experts)]
    close = {"rtol": 2e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {"rtol": 2e-3, "atol": 5e-3}
    torch.testing.assert_close(got[:8].double(), torch.stack(want), **close)
    assert got.dtype == dtype and not got[8:].any(), "a row of no group"
    (wide,) = grouped([x], **lists, group_list=groups, group_list_type=kind, group_type=0, split_item=3, output_dtype=6)
    torch.testing.assert_close(wide[:8].double(), torch.stack(want), rtol=1e-5, atol=1e-5)


def test_quantised_groups_have_scales_of_their_own():
    x, weight = int8(6, 16), int8(3, 16, 5)
    scale, rows, ends = torch.rand(3, 5) / 99, torch.rand(6), torch.tensor([1, 4, 6])
    options = {"group_list": ends, "group_type": 0, "split_item": 2, "output_dtype": BF16}
    for scales in ([scale], list(scale)):
        (got,) = grouped([x], [weight], scale=scales, per_token_scale=[rows], **options)
        for row, expert in enumerate([0, 1, 1, 1, 2, 2]):
            want = (x[row].long() @ weight[expert].long()).double() * scale[expert] * rows[row]
            torch.testing.assert_close(got[row], want.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_weight_of_int8_beside_floats_is_made_floats_by_scale_and_offset(dtype):
    x, weight = tensor((6, 16), dtype), int8(3, 16, 5)
    scale, offset = (torch.rand(3, 5) / 99).to(dtype), torch.randint(-9, 9, (3, 5)).to(dtype)
    bias = torch.randn(3, 5)
    options = {"group_list": torch.tensor([1, 4, 6]), "group_type": 0, "split_item": 3}
    for scales, offsets in (([scale], [offset]), (list(scale), list(offset))):
        (got,) = grouped([x], [weight], bias=[bias], antiquant_scale=scales, antiquant_offset=offsets, **options)
        for row, expert in enumerate([0, 1, 1, 1, 2, 2]):
            wide = (weight[expert].double() + offset[expert].double()) * scale[expert].double()
            torch.testing.assert_close(got[row], (x[row].double() @ wide + bias[expert]).to(dtype))


def test_lists_of_both_and_results_of_their_own():
    xs, weights = [tensor((2, 8), torch.float32), tensor((4, 3), torch.float32)], [torch.randn(8, 5), torch.randn(3, 5)]
    want = [x @ weight for x, weight in zip(xs, weights)]
    for got in (grouped(xs, weights, group_type=-1), grouped.List(xs, weights, group_type=-1)):
        assert len(got) == 2
        torch.testing.assert_close(list(got), want)
    torch.testing.assert_close(grouped(xs, weights, group_type=-1, split_item=2)[0], torch.cat(want))
    batched = grouped([torch.ones(2, 3, 8)], weights[:1], group_type=-1)
    torch.testing.assert_close(batched[0], torch.ones(2, 3, 8) @ weights[0])
    x, experts = torch.randn(7, 8), list(torch.randn(3, 8, 5))
    apart = grouped.List([x], experts, group_list=[2, 4, 7], split_item=1)
    want = [x[:2] @ experts[0], x[2:4] @ experts[1], x[4:] @ experts[2]]
    torch.testing.assert_close(list(apart), want)
    torch.testing.assert_close(grouped.List([x], experts, group_list=[2, 4, 7], split_item=3)[0], torch.cat(want))


HALF_BY_INT8 = {"x": [torch.ones(4, 8).half()], "weight": [int8(2, 8, 5)]}
ANTIQUANT = ("antiquant_scale", "antiquant_offset")


def test_what_grouped_matmul_does_not_serve_it_refuses():
    x, weight, ends = torch.randn(4, 8), torch.randn(2, 8, 5), torch.tensor([1, 4])
    usual = {"x": [x], "weight": [weight], "group_list": ends, "group_type": 0, "split_item": 3}
    for wrong, said in (
        ({"group_type": 2}, "group_type"),
        ({"group_list_type": 2}, "group_list_type"),
        ({"split_item": 0}, "split_item"),
        ({"act_type": 1}, "act_type"),
        ({"antiquant_scale": [torch.ones(2, 5)]}, "antiquant_scale"),
        (HALF_BY_INT8 | {"antiquant_scale": [torch.ones(2, 5).half()]}, "antiquant_offset"),
        (HALF_BY_INT8 | {"antiquant_offset": [torch.ones(2, 5).half()]}, "antiquant_scale"),
        (HALF_BY_INT8 | {key: [torch.ones(2, 5)] for key in ANTIQUANT}, "antiquant_scale of torch.float16"),
        (HALF_BY_INT8 | {key: [torch.ones(2, 2, 5).half()] for key in ANTIQUANT}, "a number for each column"),
        ({"offset": [torch.ones(2, 5)]}, "offset"),
        ({"scale": [torch.ones(2, 5)]}, "scale"),
        ({"output_dtype": BF16, "weight": [int8(2, 8, 5)]}, "weight of torch"),
        ({"x": [int8(4, 8)], "weight": [int8(2, 8, 5)]}, "output_dtype"),
        ({"x": [x, x]}, "single x"),
    ):
        with pytest.raises(Unserved, match=said):
            grouped(**usual | wrong)
    with pytest.raises(ValueError, match="group_type=-1"):
        grouped(**usual | {"group_type": -1})
    for ends in ([1, 2, 4], [1, 5], [3, 2]):
        with pytest.raises(ValueError, match="groups of"):
            grouped(**usual | {"group_list": torch.tensor(ends)})


def test_products_that_meet_other_ranks():
    """Of two ranks that have the same numbers."""
    ops, x, w = torch.ops.npu, tensor((4, 8), torch.float16), tensor((8, 5), torch.float16)
    want = (x.double() @ w.double()).half()
    close = {"rtol": 2e-3, "atol": 2e-3}
    torch.testing.assert_close(ops.npu_mm_all_reduce_base(x.view(2, 2, 8), w, ALIKE), (want * 2).view(2, 2, 5), **close)
    torch.testing.assert_close(ops.npu_mm_reduce_scatter_base(x, w, ALIKE, 2), (want * 2)[:2], **close)
    made, every = ops.npu_all_gather_base_mm(x, w, ALIKE, 2)
    torch.testing.assert_close(made, torch.cat([want, want]), **close)
    assert torch.equal(every, torch.cat([x, x]))
    assert ops.npu_all_gather_base_mm(x, w, ALIKE, 2, gather_output=False)[1].shape == (0,)


@pytest.mark.parametrize(
    ("why", "call"),
    [
        ("bias", lambda ops, x, w: ops.npu_mm_all_reduce_base(x, w, ALIKE, bias=w[0])),
        ("float16 or of bfloat16", lambda ops, x, w: ops.npu_mm_all_reduce_base(x.float(), w.float(), ALIKE)),
        ("reduce_op='max'", lambda ops, x, w: ops.npu_mm_all_reduce_base(x, w, ALIKE, reduce_op="max")),
        ("comm_mode='other'", lambda ops, x, w: ops.npu_mm_reduce_scatter_base(x, w, ALIKE, 2, comm_mode="other")),
        ("world_size=3", lambda ops, x, w: ops.npu_mm_reduce_scatter_base(x, w, ALIKE, 3)),
        ("factors of 2", lambda ops, x, w: ops.npu_all_gather_base_mm(x[None], w, ALIKE, 2)),
    ],
)
def test_what_products_that_meet_other_ranks_do_not_serve(why: str, call):
    with pytest.raises(Unserved, match=why):
        call(torch.ops.npu, tensor((4, 8), torch.float16), tensor((8, 5), torch.float16))


def test_a_group_of_another_size_or_name_is_refused():
    x, w = tensor((4, 8), torch.float16), tensor((8, 5), torch.float16)
    with pytest.raises(ValueError, match="the group has 2 ranks, and world_size is 4"):
        torch.ops.npu.npu_mm_reduce_scatter_base(x, w, ALIKE, 4)
    with pytest.raises(LookupError, match="no group of ranks is called 'nobody'"):
        torch.ops.npu.npu_mm_all_reduce_base(x, w, "nobody")
