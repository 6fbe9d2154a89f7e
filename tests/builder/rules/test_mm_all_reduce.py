"""`mm_all_reduce`: what it takes and leaves beside what all rules for such products do (`test_meeting`)."""

from fusing import declines, fires, half
from meeting_products import OPS, ROWS, WEIGHT, meeting


def test_the_sum_of_layers_over_sequences():
    ops = fires("mm_all_reduce", OPS["mm_all_reduce"], meeting("mm_all_reduce"), half(2, 64, 256), WEIGHT)
    assert "air.all_reduce.default" not in ops


def test_a_vector_is_left_to_who_refuses_it():
    declines("mm_all_reduce", "has 1 dimensions, the fused kernel takes 2", meeting("mm_all_reduce"), ROWS, half(256))
