"""`mm_reduce_scatter`: each rank gets its rows (`test_meeting` has what it leaves)."""

import pytest
import torch
from fusing import declines, fires, half
from meeting_products import OPS, WEIGHT, meeting


@pytest.mark.parametrize("rows", [128, 130])
def test_the_rows_of_a_rank(rows: int):
    ops = fires("mm_reduce_scatter", OPS["mm_reduce_scatter"], meeting("mm_reduce_scatter"), half(rows, 256), WEIGHT)
    assert "air.reduce_scatter.default" not in ops


def test_few_rows_are_left_alone():
    declines(
        "mm_reduce_scatter", "no call has more than 126 rows", meeting("mm_reduce_scatter"), half(126, 256), WEIGHT
    )


def test_bfloat16():
    inputs = [one.to(torch.bfloat16) for one in (half(128, 256), WEIGHT)]
    fires("mm_reduce_scatter", OPS["mm_reduce_scatter"], meeting("mm_reduce_scatter"), *inputs)
