"""`lift_add_rms_norm`: where it fires, and each reason to decline."""

import pytest
import torch
from fusing import ROWS, declines, fires, half

aten, npu = torch.ops.aten, torch.ops.npu


def test_residual_sums():
    def function(x1, x2, gamma):
        added = x1 + x2
        return npu.npu_rms_norm.default(added, gamma, 1e-5)[0], added

    assert len(fires("lift_add_rms_norm", "npu_add_rms_norm", function, *ROWS)) == 1
    declines("lift_add_rms_norm", "have different shapes", function, ROWS[0], half(32), ROWS[2])
    twice = lambda a, b, g: (npu.npu_rms_norm.default(torch.add(a, b, alpha=2), g)[0],)  # noqa: E731
    declines("lift_add_rms_norm", "alpha=2, which the rule does not take", twice, *ROWS)
    number = lambda a, b, g: (npu.npu_rms_norm.default(a + 1.0, g)[0],)  # noqa: E731
    declines("lift_add_rms_norm", "1.0 is not a tensor", number, *ROWS)


LIFT = "lift_add_rms_norm"


def _summed(*epsilon, keeps: bool = True):
    def function(x1, x2, gamma):
        added = x1 + x2
        y = npu.npu_rms_norm.default(added, gamma, *epsilon)[0]
        return (y, added) if keeps else (y,)

    return function


@pytest.mark.parametrize("epsilon", [(), (1e-6,), (1e-3,)])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_epsilon_and_dtype_with_the_sum_and_without(epsilon, keeps, dtype):
    inputs = [tensor.to(dtype) for tensor in ROWS]
    assert len(fires(LIFT, "npu_add_rms_norm", _summed(*epsilon, keeps=keeps), *inputs)) == 1


@pytest.mark.parametrize("shape", [(1, 32), (32,), (0, 32), (2, 1, 1)])
def test_one_row_no_row_and_one_column(shape):
    inputs = half(*shape), half(*shape, seed=1), half(shape[-1], seed=2)
    fires(LIFT, "npu_add_rms_norm", _summed(), *inputs)


def test_what_does_not_lie_in_one_piece_is_taken():
    fires(LIFT, "npu_add_rms_norm", _summed(), half(32, 3).t(), half(3, 64)[:, ::2], half(64)[::2])


@pytest.mark.parametrize(
    ("why", "inputs"),
    [
        ("x1_1 is float16 and x2_1 is float32", (ROWS[0], ROWS[1].float(), ROWS[2].float())),
        ("gamma_1 is bfloat16 and x1_1 is float16", (*ROWS[:2], ROWS[2].bfloat16())),
        ("have different shapes: [2, 3, 32] and [1, 3, 32]", (ROWS[0], half(1, 3, 32), ROWS[2])),
    ],
)
def test_what_the_kernel_does_not_take_declines(why, inputs):
    declines(LIFT, why, _summed(), *inputs)


def test_the_square_root_that_somebody_takes_keeps_them_apart():
    def function(x1, x2, gamma):
        y, root = npu.npu_rms_norm.default(x1 + x2, gamma)
        return y, root * 2

    declines(LIFT, "the result 1 of npu_rms_norm is used too", function, *ROWS)


def _gemma(x1, x2, weight):
    added = x1 + x2
    return npu.npu_rms_norm.default(added, 1 + weight.float(), 1e-6)[0], added


def test_one_plus_the_weight_in_float32_is_brought_before_the_sum():
    """The norms of Gemma: what is made of the weight alone comes after the sum, and is no reason to stay."""
    fires("lift_add_rms_norm", "npu_add_rms_norm", _gemma, *ROWS)


def test_a_gamma_that_is_made_of_the_sum_stays():
    def function(x1, x2):
        added = x1 + x2
        return npu.npu_rms_norm.default(added, added[0, 0] * 2, 1e-6)[0], added

    declines("lift_add_rms_norm", "is computed after the first of its results", function, *ROWS[:2])


def test_a_gamma_of_many_calls_stays_where_it_is():
    def function(x1, x2, weight):
        added = x1 + x2
        for _ in range(10):
            weight = weight + 0.01
        return npu.npu_rms_norm.default(added, weight, 1e-6)[0], added

    declines("lift_add_rms_norm", "is computed after the first of its results", function, *ROWS)
