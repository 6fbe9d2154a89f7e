"""`all_gather_mm`: rows that others read too, biases (`test_meeting` has what it leaves)."""

import pytest
from fusing import declines, fires, half
from meeting_products import MATRIX, OPS, ROWS, WEIGHT, air, aten


def test_gathered_rows_that_others_read_are_a_second_result():
    def function(left, right):
        every = air.all_gather.default(left, 2, "tp")
        return aten.linear.default(every, right) * 1, every * 3

    ops = fires("all_gather_mm", OPS["all_gather_mm"], function, ROWS, WEIGHT)
    assert "air.all_gather.default" not in ops


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("linear", [False, True])
def test_a_bias_behind_gathered_rows_is_added_to_the_product(linear: bool, again: bool):
    def function(left, right, bias):
        every = air.all_gather.default(left, 2, "tp")
        made = aten.linear.default(every, right, bias) if linear else aten.addmm.default(bias, every, right)
        return (made * 1, *((every * 3,) if again else ()))

    ops = fires("all_gather_mm", OPS["all_gather_mm"], function, ROWS, WEIGHT if linear else MATRIX, half(32))
    assert "air.all_gather.default" not in ops and "aten.add.Tensor" in ops


def test_of_gathered_rows_that_others_read_the_kernels_own_reason_is_told():
    def function(left, right):
        every = air.all_gather.default(left, 2, "tp")
        return aten.linear.default(every, right) * 1, every * 3

    declines("all_gather_mm", "no call has more than 16 rows", function, half(8, 256), WEIGHT)
