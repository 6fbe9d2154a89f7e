"""`transpose_batchmatmul`: every variant, and each reason to decline."""

import re

import pytest
import torch
from fusing import declines, fires, fuse, half, symbolic

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


def _product(dims=(0, 1), swap=None, view=None, after=None):
    def function(x1, x2):
        left = x1 if swap is None else aten.transpose.int(x1, *swap)
        product = aten.bmm.default(left if view is None else aten.view.default(left, view), x2)
        product = product if after is None else aten.view.default(product, after)
        return (aten.transpose.int(product, *dims) * 1,)

    return function


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("batch", "rows"), [(1, 3), (2, 1), (2, 3)])
def test_one_batch_one_row_and_every_dtype(dtype, batch, rows):
    left, right = half(batch, rows, 128).to(dtype), (half(batch, 128, 128, seed=1) / 128).to(dtype)
    fires("transpose_batchmatmul", "npu_transpose_batchmatmul", _product(), left, right)
    turned = left.transpose(0, 1).contiguous()
    fires("transpose_batchmatmul", "npu_transpose_batchmatmul", _product(swap=(0, 1)), turned, right)


@pytest.mark.parametrize(
    ("why", "function", "inputs"),
    [
        ("changes the shape of the product", _product(after=[3, 2, 128]), (LEFT, RIGHT)),
        (
            "has a dimension of 65536, the kernel takes 1 to 65535",
            _product(),
            (half(1, 1, 128).expand(1, 65536, 128).contiguous(), half(1, 128, 128) / 128),
        ),
    ],
)
def test_what_the_kernel_does_not_take_declines(why, function, inputs):
    declines("transpose_batchmatmul", why, function, *inputs)


def test_a_last_dimension_that_is_a_symbol_declines():
    edits = symbolic("transpose_batchmatmul", _product(), half(2, 3, 128), half(2, 128, 256))
    assert edits.count == 0 and "the last dimension of x1_1 is symbolic" in edits.accounts[0].text


def test_what_lies_transposed_is_taken():
    left, right = half(2, 128, 3).transpose(1, 2), (half(2, 128, 128) / 128).transpose(1, 2)
    fires("transpose_batchmatmul", "npu_transpose_batchmatmul", _product(), left, right)


@pytest.mark.parametrize(
    ("swap", "left", "right"),
    [((1, 2), half(2, 128, 3), RIGHT), ((0, 1), half(1, 512, 128), half(512, 128, 128) / 128)],
)
def test_a_first_argument_that_the_kernel_does_not_turn_is_turned_before(swap, left, right):
    """It is transposed along others, or its rows are too long for that: the product alone is fused."""
    ops = fires("transpose_batchmatmul", "npu_transpose_batchmatmul", _product(swap=swap), left, right)
    assert ops.count("aten.transpose.int") == 1


def test_a_view_that_changes_the_first_argument_stays_before():
    function = _product(swap=(0, 1), view=[2, 3, 128])
    ops = fires("transpose_batchmatmul", "npu_transpose_batchmatmul", function, half(6, 1, 128), RIGHT)
    assert "aten.view.default" in ops
