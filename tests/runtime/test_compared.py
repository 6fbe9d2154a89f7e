"""How far tensors are apart: in numbers, in units in the last place, and within which bound."""

import math

import pytest
import torch

from aotair_runtime.format.schema import Tolerance
from aotair_runtime.weights.compared import ROW, compare, difference, row_length, tolerance_text

SCALE = Tolerance(0.0, 0.0, 64 * 2.0**-23)
EXACT = Tolerance(0.0, 0.0)


def moved(size: float, by: float, rows: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of `ROW` numbers, the first of them of that size, and one with another that is off."""
    want = torch.zeros(rows, ROW)
    want[:, 0] = size
    got = want.clone()
    got[0, 1] += by
    return got, want


@pytest.mark.parametrize("size", [1e-6, 1.0, 39_000.0])
def test_a_bound_in_scale_is_the_same_at_every_size(size: float):
    unit = size * 2.0**-23
    assert difference(*moved(size, 63 * unit), SCALE).within
    assert not difference(*moved(size, 65 * unit), SCALE).within
    found = difference(*moved(size, 63 * unit), SCALE)
    assert found.units == pytest.approx(63, rel=1e-3) and found.error == pytest.approx(63 * unit, rel=1e-3)


def test_each_row_has_its_own_scale():
    """What is small beside another row is not small in its own."""
    got, want = moved(1.0, 1e-3)
    want[1, 0] = got[1, 0] = 1e6
    assert not difference(got, want, SCALE).within


def test_rows_hold_enough_numbers_to_have_a_scale():
    assert [row_length(torch.Size(shape)) for shape in [(), (3,), (8, 200), (4, 3, 8, 8), (5, 2)]] == [
        1,
        3,
        200,
        64,
        10,
    ]
    want = torch.tensor([[1.0], [1e-9]])
    assert difference(want + torch.tensor([[0.0], [1e-7]]), want, SCALE).within, "a result near zero beside another"


def test_slack_is_a_least_bound():
    pair = moved(1.0, 1e-3)
    assert not difference(*pair, SCALE).within and difference(*pair, SCALE, 1.1e-3).within
    assert not difference(*pair, SCALE, 0.9e-3).within


def test_a_coarser_dtype_may_be_off_by_its_own_last_places():
    want = torch.ones(ROW, dtype=torch.bfloat16)
    got = want.clone()
    got[3] += 2.0**-7
    assert difference(got, want, SCALE).within and not difference(got + 0.03, want, SCALE).within
    assert not difference(got, want, EXACT).within


def test_whole_numbers_are_exact_but_where_steps_are_rounded():
    want = torch.tensor([40_000, 3])
    assert not difference(want + 1, want, SCALE).within and difference(want, want.clone(), SCALE).within
    steps = torch.tensor([4, -9], dtype=torch.int8)
    assert difference(steps + 1, steps, Tolerance(0.0, 0.0, 5e-2)).within
    assert not difference(steps + 2, steps, Tolerance(0.0, 0.0, 5e-2)).within
    assert not difference(steps + 1, steps, SCALE).within


def test_an_absolute_bound_is_as_it_was():
    want = torch.tensor([0.0, 100.0])
    assert compare(want + torch.tensor([1e-5, 1e-2]), want, 1.1e-5, 1.1e-4) == (pytest.approx(1e-2, rel=1e-2), True)
    assert compare(want + torch.tensor([1e-4, 0.0]), want, 1.1e-5, 1e-4)[1] is False


def test_what_is_no_number_equals_itself_alone():
    odd = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    assert compare(odd, odd.clone(), 0, 0) == (0.0, True)
    for place, value in ((0, 1.0), (1, -math.inf), (2, 0.0), (3, math.nan), (3, math.inf)):
        other = odd.clone()
        other[place] = value
        assert compare(other, odd, 1e9, 1.0) == (math.inf, False)
        assert not difference(other, odd, SCALE, 1e30).within


def test_other_shapes_and_dtypes_are_no_answers():
    ones = torch.ones(2)
    assert compare(torch.ones(3), ones, 1, 1)[1] is compare(ones.double(), ones, 1, 1)[1] is False
    assert compare(torch.ones(0), torch.ones(0), 0, 0) == (0.0, True)


def test_complex_numbers_are_as_far_apart_as_they_lie():
    want = torch.full((ROW,), 3 + 4j)
    assert difference(want + 2e-5j, want, SCALE).within and not difference(want + 2e-4j, want, SCALE).within


def test_bounds_in_words():
    assert tolerance_text(Tolerance(1e-3, 0.0)) == "atol 0.001 and rtol 0"
    assert tolerance_text(Tolerance(0.0, 0.0, 1e-2)) == "0.01 of the greatest number of its row"
    assert tolerance_text(Tolerance(1e-3, 1e-2, 1e-2)).startswith("atol 0.001 and rtol 0.01 and 0.01 of the")


@pytest.mark.parametrize("scale, off, within", [(0.05, 1, True), (0.05, 2, False), (1e-6, 1, False), (1e-6, 0, True)])
def test_whole_numbers_that_were_rounded_may_be_off_by_a_step_where_the_bound_is_coarse(
    scale: float, off: int, within: bool
):
    want = torch.full((2, ROW), 100, dtype=torch.int8)
    got = want.clone()
    got[1, 3] += off
    found = difference(got, want, tolerance := Tolerance(0.0, 0.0, scale))
    assert (found.within, found.error, found.units) == (within, off, off)
    assert tolerance_text(tolerance, torch.int8) == f"{int(scale > 1e-3)} of each whole number"
    assert tolerance_text(tolerance, torch.int64) == "0 of each whole number"
