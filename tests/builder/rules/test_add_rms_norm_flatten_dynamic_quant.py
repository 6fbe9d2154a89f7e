"""`add_rms_norm_flatten_dynamic_quant`: every variant, and each reason to decline."""

import pytest
import torch
from fusing import ROWS, declines, fires, fuse, half, norm

aten, npu = torch.ops.aten, torch.ops.npu


DYNAMIC, FLAT = "add_rms_norm_dynamic_quant", "add_rms_norm_flatten_dynamic_quant"


@pytest.mark.parametrize("keeps_sum", [True, False])
@pytest.mark.parametrize("rank", [3, 4])
def test_flattened_dynamic_quant_gives_the_outputs_of_the_documentation(keeps_sum, rank):
    shape = (2, 3, 4)[: rank - 1]
    inputs = half(*shape, 32), half(*shape, 32, seed=1), ROWS[2]

    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        q, scale = npu.npu_dynamic_quant.default(y.flatten(0, 1))
        return (q, scale.view(-1, 1), x) if keeps_sum else (q, scale.view(-1, 1))

    ops = fires(FLAT, "npu_add_rms_norm_dynamic_quant", function, *inputs)
    assert ops == ["npu.npu_add_rms_norm_dynamic_quant.default", "aten.view.default", "aten.view.default"]


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("is not flatten(0, 1)", lambda y: y.view(12, 16)),
        ("stands where the rule needs aten.view.default", lambda y: y),
    ],
)
def test_flattened_dynamic_quant_declines(why, change):
    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        q, scale = npu.npu_dynamic_quant.default(change(y))
        return q, scale.view(-1, 1), x

    declines(FLAT, why, function, *ROWS)


@pytest.mark.parametrize(
    ("why", "inputs"),
    [
        ("is float32, the fused kernel takes float16 and bfloat16", tuple(tensor.float() for tensor in ROWS)),
        ("have different shapes", (ROWS[0], half(1, 3, 32), ROWS[2])),
        ("norms the last one only", (*ROWS[:2], half(3, 32))),
        ("is not flatten(0, 1): [6, 32] becomes [6, 32]", (half(6, 32), half(6, 32), ROWS[2])),
    ],
)
def test_what_the_kernel_does_not_take_declines(why, inputs):
    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        q, scale = npu.npu_dynamic_quant.default(aten.view.default(y, [6, 32]))
        return q, scale.view(-1, 1), x

    if inputs[0].dim() == 2:
        _, left, count = fuse(FLAT, function, *inputs)
        assert count == 0 and "stands where the rule needs aten.view.default" in left[0], "such a view changes nothing"
    else:
        declines(FLAT, why, function, *inputs)


@pytest.mark.parametrize("shape", [(1, 1, 32), (1, 3, 32), (3, 1, 32)])
def test_dimensions_of_one_are_flattened_too(shape):
    def function(x1, x2, gamma):
        q, scale = npu.npu_dynamic_quant.default(norm(x1, x2, gamma)[0].flatten(0, 1))
        return q, scale.view(-1, 1)

    fires(FLAT, "npu_add_rms_norm_dynamic_quant", function, half(*shape), half(*shape, seed=1), ROWS[2])
