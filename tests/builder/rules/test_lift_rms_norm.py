"""`lift_rms_norm`: every spelling, and each reason to decline."""

import pytest
import torch
from fusing import F16, ROWS, declines, fires, fuse, half
from torch.nn import functional

aten, npu = torch.ops.aten, torch.ops.npu


def llama(x, weight):
    wide = x.to(torch.float32)
    return (weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype),)


def gemma(x, weight):
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return ((normed * (1.0 + weight.float())).type_as(x),)


def olmo(x, weight):
    wide = x.float()
    return ((weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5))).to(x.dtype),)


def divided_last(x, weight):
    return (weight * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)),)


def divided(x, weight):
    wide = x.float()
    return (weight * (wide / torch.sqrt((wide * wide).mean(2, keepdim=True) + 1e-5)).to(x.dtype),)


def powered(x, weight):
    wide = x.float()
    return ((wide * torch.pow(wide.square().mean(-1, keepdim=True) + 1e-5, -0.5)).type_as(x) * weight,)


def torchs(x, weight):
    return (functional.rms_norm(x, (32,), weight),)


@pytest.mark.parametrize("spelling", [llama, gemma, olmo, divided, powered, torchs])
@pytest.mark.parametrize("dtype", [F16, torch.bfloat16, torch.float32])
def test_rms_norms_are_lifted(spelling, dtype):
    ops = fires("lift_rms_norm", "npu_rms_norm", spelling, ROWS[0].to(dtype), ROWS[2].to(dtype))
    assert len(ops) == (3 if spelling is gemma and dtype != torch.float32 else 2 if spelling is gemma else 1)


def test_other_norms_are_not():
    def mean(dims, epsilon=1e-5, dtype=torch.float32):
        def function(x, weight):
            wide = x.to(dtype)
            return (weight * (wide * torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + epsilon)).to(x.dtype),)

        return function

    x, weight = ROWS[0], ROWS[2]
    declines("lift_rms_norm", "not over the last dimension", mean((1,)), x, weight)
    declines("lift_rms_norm", "npu_rms_norm computes in float32", mean((-1,), dtype=F16), x, weight)
    declines("lift_rms_norm", "is float64", mean((-1,), dtype=torch.float64), x.double(), weight.double())
    declines("lift_rms_norm", "not that of the last dimension", llama, x, weight[:1])
    _, left, count = fuse("lift_rms_norm", lambda x, w: (functional.layer_norm(x, (32,), w),), x, weight)
    assert count == 0 and not left, "a layer norm is not near"


def test_the_norm_of_a_number_is_left():
    declines("lift_rms_norm", "has no dimension", divided_last, half(1)[0], half(32))


def test_numbers_are_no_weights_and_other_dtypes_no_results():
    wide = lambda x: x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)  # noqa: E731
    x = half(2, 3, 4, 32).float()
    declines("lift_rms_norm", "2.0 is not a tensor", lambda x: (wide(x) * 2.0,), x)
    cast = lambda x, w: (w * wide(x).bfloat16(),)  # noqa: E731
    declines("lift_rms_norm", "is cast to torch.bfloat16", cast, x, half(32).float())


def _by_op(x, weight):
    return (functional.rms_norm(x, (32,), weight, 1e-3),)


def _by_op_over_two(x, weight):
    return (functional.rms_norm(x, (3, 32), weight),)


@pytest.mark.parametrize("shape", [(1, 32), (32,), (0, 32), (2, 2, 2, 32)])
@pytest.mark.parametrize("spelling", [llama, _by_op])
def test_one_row_no_row_and_many_dimensions(shape, spelling):
    fires("lift_rms_norm", "npu_rms_norm", spelling, half(*shape), half(32, seed=1))


def test_a_weight_of_float32_is_taken_and_other_dtypes_are_not():
    fires("lift_rms_norm", "npu_rms_norm", olmo, ROWS[0], ROWS[2].float())
    why = "weight_1 is bfloat16 and x_1 is float16"
    declines("lift_rms_norm", why, lambda x, weight: (llama(x, weight)[0] * 1,), ROWS[0], ROWS[2].bfloat16())


def test_the_norm_over_two_dimensions_declines():
    declines("lift_rms_norm", "it norms over 2 dimensions", _by_op_over_two, ROWS[0], half(3, 32))


def test_an_epsilon_that_is_no_number_declines():
    def function(x, weight):
        return (weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1)),)

    def by_tensor(x, weight):
        return (weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + weight[:1])),)

    declines("lift_rms_norm", "epsilon is 1, not a number", function, ROWS[0].float(), ROWS[2].float())
    declines("lift_rms_norm", "epsilon is slice_1, not a number", by_tensor, ROWS[0].float(), ROWS[2].float())
