"""`add_rms_norm_dynamic_quant`: every variant, and each reason to decline."""

import pytest
import torch
from fusing import ROWS, SCALES, declines, fires, half, norm, quantised, symbolic

aten, npu = torch.ops.aten, torch.ops.npu


DYNAMIC, FLAT = "add_rms_norm_dynamic_quant", "add_rms_norm_flatten_dynamic_quant"


@pytest.mark.parametrize("epsilon", [(), (1e-6,), (1e-5,)])
@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("keeps_sum", [True, False])
def test_dynamic_quant_in_all_variants(epsilon, smooth, keeps_sum):
    def function(x1, x2, gamma, scales):
        y, _, x = norm(x1, x2, gamma, *epsilon)
        q, scale = npu.npu_dynamic_quant.default(y, smooth_scales=scales if smooth else None)
        return (q, scale, x) if keeps_sum else (q, scale)

    ops = fires(DYNAMIC, DYNAMIC.join(("npu_", "")), function, *ROWS, SCALES)
    assert len(ops) == 1, "the rest is gone"


@pytest.mark.parametrize(
    ("why", "function", "inputs"),
    [
        ("dst_type=1, which the rule does not take", quantised(dst_type=1), ROWS),
        ("stands where the rule needs getitem", quantised(lambda y: y * 2.0), ROWS),
        ("is float32, the fused kernel takes float16 and bfloat16", quantised(), tuple(t.float() for t in ROWS)),
        ("have different shapes", quantised(), (ROWS[0], half(1, 3, 32), ROWS[2])),
        ("dimensions, the fused kernel norms the last one", quantised(), (*ROWS[:2], half(3, 32))),
    ],
)
def test_dynamic_quant_declines(why, function, inputs):
    declines(DYNAMIC, why, function, *inputs)


def test_a_symbolic_last_dimension_declines():
    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        return (*npu.npu_dynamic_quant.default(y), x)

    edits = symbolic(DYNAMIC, function, *ROWS)
    assert edits.count == 0 and "is symbolic" in edits.accounts[0].text


def test_scales_of_another_shape_decline():
    def function(x1, x2, gamma, scales):
        y, _, x = norm(x1, x2, gamma)
        return (*npu.npu_dynamic_quant.default(y, smooth_scales=scales), x)

    declines(DYNAMIC, "scales_1 has another shape than gamma_1", function, *ROWS, SCALES[:1])


@pytest.mark.parametrize("shape", [(1, 32), (1, 1, 32), (2, 2, 2, 32)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_row_and_many_dimensions_have_the_same_numbers(shape, dtype):
    inputs = half(*shape).to(dtype), half(*shape, seed=1).to(dtype), half(32, seed=2).to(dtype)
    fires(DYNAMIC, "npu_add_rms_norm_dynamic_quant", quantised(), *inputs)
