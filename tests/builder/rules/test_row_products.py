"""Products beside ranks of which each has some rows (`sequence`), by `mm_reduce_scatter` and `all_gather_mm`."""

import math

import pytest
import torch
from fusing import declines, fuse, half
from meeting_products import WEIGHT, aten
from torch._subclasses.fake_tensor import FakeTensorMode

from aotair.ops import row_products, rows

SIZES = [(128,), (131,), (2, 65), (3, 43), (2, 2, 33)]


def summed(x, weight, *bias):
    return (rows.SUM(aten.linear.default(x, weight, *bias), 2, "tp") * 1,)


def gathered(*sizes: int, again: bool = False):
    def function(x, weight, *bias):
        every = rows.ALL(x, sizes, 2, "tp")
        return (aten.linear.default(every, weight, *bias) * 1, *((every * 3,) if again else ()))

    return function


def part_of(sizes: tuple[int, ...]) -> torch.Tensor:
    return half((math.prod(sizes) + 1) // 2, 256)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_rank_keeps_its_rows_of_a_product(sizes: tuple[int, ...]):
    ops, left, count = fuse("mm_reduce_scatter", summed, half(*sizes, 256), WEIGHT)
    assert (count, left) == (1, []) and "air.mm_sum_rows.default" in ops and "aten.linear.default" not in ops


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_product_takes_the_rows_of_all(sizes: tuple[int, ...], again: bool, biased: bool):
    bias = (half(32, seed=2),) if biased else ()
    ops, left, count = fuse("all_gather_mm", gathered(*sizes, again=again), part_of(sizes), WEIGHT, *bias)
    assert (count, left) == (1, []) and "air.all_rows_mm.default" in ops
    assert not {"aten.linear.default", "air.all_rows.default"} & {*ops}


def test_of_several_products_one_takes_the_rows_and_gives_them_to_the_others():
    def function(x, one, other):
        every = rows.ALL(x, (2, 65), 2, "tp")
        return aten.linear.default(every, one) * 1, aten.linear.default(every, other) * 2

    ops, _, count = fuse("all_gather_mm", function, part_of((2, 65)), WEIGHT, WEIGHT * 2)
    assert count == 1 and ops.count("aten.linear.default") == 1 and "air.all_rows.default" not in ops


def test_what_the_kernels_do_not_take_is_left_alone():
    declines("mm_reduce_scatter", "no call has more than 126 rows", summed, half(2, 63, 256), WEIGHT)
    declines("mm_reduce_scatter", "each rank adds a bias", summed, half(2, 64, 256), WEIGHT, half(32))
    declines("mm_reduce_scatter", "float32", summed, half(2, 64, 256).float(), WEIGHT.float())
    declines("all_gather_mm", "no call has more than 126 rows", gathered(2, 63), part_of((2, 63)), WEIGHT)
    narrow = part_of((2, 64))[:, :255].contiguous()
    declines("all_gather_mm", "has rows of 255", gathered(2, 64), narrow, WEIGHT[:, :255].contiguous())


def test_shapes_are_those_of_the_kernels():
    with FakeTensorMode():
        x, right = torch.empty(2, 3, 256).half(), torch.empty(256, 8).half()
        assert row_products.SUM(x, right, 4, "tp").shape == (2, 8)
        made, every = row_products.ALL(torch.empty(2, 256).half(), right, (2, 3), 4, "tp")
        assert (made.shape, every.shape) == ((2, 3, 8), (2, 3, 256))
        made, every = row_products.ALL(torch.empty(2, 256).half(), right, (2, 3), 4, "tp", gather_output=False)
        assert (made.shape, every.shape) == ((2, 3, 8), (0,))
