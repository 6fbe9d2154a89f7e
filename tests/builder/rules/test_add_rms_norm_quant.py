"""`add_rms_norm_quant`: every variant, and each reason to decline."""

import pytest
import torch
from fusing import POINTS, ROWS, SCALES, declines, fires, half, norm

aten, npu = torch.ops.aten, torch.ops.npu


def _static(dtype: int = 1, axis: int = -1, *mode: bool, points: bool = True, keeps_sum: bool = True):
    def function(x1, x2, gamma, scales, zero):
        y, _, x = norm(x1, x2, gamma)
        q = npu.npu_quantize.default(y, scales, zero if points else None, dtype, axis, *mode)
        return (q, x) if keeps_sum else (q,)

    return function


@pytest.mark.parametrize("points", [True, False])
@pytest.mark.parametrize("keeps_sum", [True, False])
@pytest.mark.parametrize(("dtype", "axis"), [(1, -1), (12, -1), (1, 2)])
def test_quant_in_all_variants(points, keeps_sum, dtype, axis):
    function = _static(dtype, axis, points=points, keeps_sum=keeps_sum)
    fires("add_rms_norm_quant", "npu_add_rms_norm_quant", function, *ROWS, SCALES, POINTS)


@pytest.mark.parametrize(
    ("why", "function", "inputs"),
    [
        ("dtype=0 is not int8", _static(0), (*ROWS, SCALES, POINTS)),
        ("other arguments than the rule takes", _static(1, -1, False), (*ROWS, SCALES, POINTS)),
        ("axis=0 is not the last dimension", _static(1, 0), (*ROWS, SCALES[:2], POINTS[:2])),
        (
            "last dimension 30 x 2 bytes is not a multiple of 32 bytes",
            _static(),
            (*(t[..., :30].contiguous() for t in ROWS), SCALES[:30], POINTS[:30]),
        ),
        ("has the shape [1]", _static(), (*ROWS, SCALES[:1], POINTS[:1])),
        ("is int8, the fused kernel takes int32 or floats", _static(), (*ROWS, SCALES, POINTS.to(torch.int8))),
        ("is float32, the fused kernel", _static(), (*(t.float() for t in ROWS), SCALES, POINTS)),
    ],
)
def test_quant_declines(why, function, inputs):
    declines("add_rms_norm_quant", why, function, *inputs)


@pytest.mark.parametrize("scales", [SCALES, SCALES.float(), SCALES.bfloat16()])
@pytest.mark.parametrize("points", [POINTS, POINTS.float()])
def test_scales_and_points_of_every_dtype_that_is_taken(scales, points):
    fires("add_rms_norm_quant", "npu_add_rms_norm_quant", _static(), *ROWS, scales, points)


@pytest.mark.parametrize("shape", [(1, 32), (1, 1, 32), (0, 32), (3, 16)])
def test_one_row_no_row_and_the_shortest_rows_that_are_taken(shape):
    width = shape[-1]
    inputs = half(*shape), half(*shape, seed=1), half(width, seed=2), SCALES[:width], POINTS[:width]
    fires("add_rms_norm_quant", "npu_add_rms_norm_quant", _static(), *inputs)


def test_the_result_is_used_elsewhere():
    def function(x1, x2, gamma, scales, zero):
        y, _, _ = norm(x1, x2, gamma)
        return npu.npu_quantize.default(y, scales, zero, 1, -1), y * 2

    declines("add_rms_norm_quant", "is also used by mul (aten.mul.Tensor)", function, *ROWS, SCALES, POINTS)


def test_scales_that_are_no_floats_decline():
    declines("add_rms_norm_quant", "is int32, not floating-point", _static(), *ROWS, SCALES.int() + 1, POINTS)
