"""`transpose_batchmatmul`: every variant, and each reason to decline."""

import re

import pytest
import torch
from fusing import declines, fires, fuse, half

aten, npu = torch.ops.aten, torch.ops.npu


LEFT, RIGHT = half(2, 3, 128), half(2, 128, 128, seed=1) / 128


@pytest.mark.parametrize("dims", [(0, 1), (1, 0), (-3, 1), (-2, -3)])
@pytest.mark.parametrize("swapped", [None, (0, 1), (-2, -3)])
@pytest.mark.parametrize("viewed", [True, False])
def test_transposed_products(dims, swapped, viewed):
    def function(x1, x2):
        left = x1 if swapped is None else aten.transpose.int(x1, *swapped)
        product = aten.bmm.default(aten.expand.default(left, left.shape) if viewed else left, x2)
        return (aten.transpose.int(product, *dims) * 1,)

    left = LEFT if swapped is None else LEFT.transpose(0, 1).contiguous()
    ops = fires("transpose_batchmatmul", "npu_transpose_batchmatmul", function, left, RIGHT)
    assert "aten.transpose.int" not in ops


@pytest.mark.parametrize(
    ("why", "dims", "left", "right"),
    [
        ("transposed by (-1, -2), not (0, 1)", (-1, -2), LEFT, RIGHT),
        ("transposed by (0, 2), not (0, 1)", (0, 2), LEFT, RIGHT),
        ("is not a multiple of 128", (0, 1), LEFT, RIGHT[..., :64].contiguous()),
        ("is float64", (0, 1), LEFT.double(), RIGHT.double()),
        ("the kernel takes 1 to 65535", (0, 1), LEFT[:, :0], RIGHT),
    ],
)
def test_transposed_products_decline(why, dims, left, right):
    function = lambda a, b: (aten.transpose.int(aten.bmm.default(a, b), *dims) * 1,)  # noqa: E731
    declines("transpose_batchmatmul", why, function, left, right)


@pytest.mark.parametrize("dims", [(0, 1), (1, 2), (-3, -4)])
@pytest.mark.parametrize("swapped", [None, (0, 1), (1, 2)])
def test_products_of_four_dimensions_are_said_to_be_that(dims, swapped):
    """Whatever is transposed: the number of dimensions is the reason, and the words say nothing else."""

    def function(a, b):
        left = a if swapped is None else aten.transpose.int(a, *swapped)
        return (aten.transpose.int(torch.matmul(left, b), *dims) * 1,)

    sizes = [2, 2, 4, 128] if swapped in (None, (0, 1)) else [2, 4, 2, 128]
    why = r"has 4 dimensions, \[2, .*\]: the kernel takes matrices with one batch dimension"
    _, left, count = fuse("transpose_batchmatmul", function, half(*sizes), half(2, 2, 128, 128, seed=1) / 128)
    assert count == 0 and len(left) == 1 and re.search(why, left[0]) and "transposed by" not in left[0]
