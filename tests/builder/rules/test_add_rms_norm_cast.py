"""`add_rms_norm_cast`: every variant, and each reason to decline."""

import pytest
import torch
from fusing import ROWS, declines, fires, half, norm

aten, npu = torch.ops.aten, torch.ops.npu
CAST = "add_rms_norm_cast"


@pytest.mark.parametrize("by_npu", [True, False])
@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("keeps", [(), ("x",), ("y",), ("x", "y", "rows")])
def test_cast_in_all_variants(by_npu, rows, keeps):
    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma, 1e-5)
        flat = y.view(-1, 32) if rows else y
        wide = npu._npu_dtype_cast.default(flat, torch.float32) if by_npu else flat.float()
        return (wide, *({"x": x, "y": y, "rows": flat * 2}[name] for name in keeps))

    fires("add_rms_norm_cast", "npu_add_rms_norm_cast", function, *ROWS)


def test_cast_declines():
    def to(dtype, view):
        return lambda x1, x2, gamma: (view(norm(x1, x2, gamma)[0]).to(dtype),)

    declines("add_rms_norm_cast", "needs torch.float32", to(torch.float64, lambda y: y), *ROWS)
    declines(
        "add_rms_norm_cast", "does not keep the last dimension 32", to(torch.float32, lambda y: y.view(-1, 16)), *ROWS
    )
    declines("add_rms_norm_cast", "does not keep the last", to(torch.float32, lambda y: y.view(2, 1, 3, 32)), *ROWS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_both_halves_are_those_of_the_ops_apart(dtype):
    function = lambda x1, x2, gamma: (norm(x1, x2, gamma)[0].float(),)  # noqa: E731
    fires(CAST, "npu_add_rms_norm_cast", function, *(tensor.to(dtype) for tensor in ROWS))


@pytest.mark.parametrize("shape", [(1, 32), (1, 1, 1, 32), (0, 32), (3, 1)])
def test_one_row_no_row_and_one_column_are_rows_too(shape):
    inputs = half(*shape), half(*shape, seed=1), half(shape[-1], seed=2)
    fires(CAST, "npu_add_rms_norm_cast", lambda a, b, gamma: (norm(a, b, gamma)[0].float(),), *inputs)


def test_arguments_that_do_not_lie_in_one_piece_are_taken():
    x1, x2, gamma = half(3, 32, 2).transpose(1, 2), half(3, 2, 64)[..., ::2], ROWS[2]
    fires(CAST, "npu_add_rms_norm_cast", lambda a, b, gamma: (norm(a, b, gamma)[0].float(),), x1, x2, gamma)


@pytest.mark.parametrize(
    ("why", "inputs"),
    [
        ("is float32, the fused kernel takes float16 and bfloat16", tuple(tensor.float() for tensor in ROWS)),
        ("have different shapes: [2, 3, 32] and [1, 3, 32]", (ROWS[0], half(1, 3, 32), ROWS[2])),
        ("has 2 dimensions, the fused kernel norms the last one only", (*ROWS[:2], half(3, 32))),
    ],
)
def test_what_the_kernel_does_not_take_declines(why, inputs):
    def function(x1, x2, gamma):
        return (npu._npu_dtype_cast.default(norm(x1, x2, gamma)[0], torch.float32),)

    declines(CAST, why, function, *inputs)
