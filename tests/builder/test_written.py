"""What a call wrote into a state: the rows that differ, of any kind of tensor, and two calls side by side."""

import pytest
import torch

from aotair.model.written import Written, greatest, side_by_side
from aotair.prove.apart import apart
from aotair.prove.runs import Run
from aotair_runtime.format.schema import Tolerance
from aotair_runtime.weights.golden import changes

SCALE = Tolerance(0.0, 0.0, 64 * 2.0**-23)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and torch.equal(tensor, other[name])


@pytest.mark.parametrize("shape", [(), (3,), (5, 8), (4, 0), (0, 100), (2, 300, 4, 16), (2, 3, 130)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex128])
def test_it_turns_what_was_there_into_what_is(shape: tuple[int, ...], dtype: torch.dtype):
    before = torch.randn(shape).to(dtype)
    after = before.clone()
    if after.numel():
        after.view(-1)[-1] = 7
    found = Written.between(before, after)
    assert torch.equal(found.whole(), after) and len(found.at) <= 1
    assert not len(Written.between(before, before.clone()).at)
    same(found.golden("x"), changes("x", before, after))
    old, new = found.changed()
    assert old.shape == new.shape and new.shape[-1] == (shape[-1] if shape and after.numel() else new.shape[-1])


def test_all_that_was_written_is_golden():
    before = torch.randn(50, 128)
    after = before.clone()
    after[[3, 40]] += 1
    after[7, 5] = -after[7, 5]
    found = Written.between(before, after).golden("x")
    assert found["x.at"].numel() == 257
    same(found, changes("x", before, after))
    same(Written.between(before, -before).golden("x"), {"x": -before})


def test_a_number_is_another_where_its_bits_are():
    before = torch.tensor([0.0, torch.nan, 1.0]).repeat_interleave(64)
    after = before.clone()
    after[0] = -0.0
    assert Written.between(before, after).at.tolist() == [0]


def test_rows_that_one_call_wrote_are_laid_beside_those_of_the_other():
    before = torch.arange(10.0)[:, None].expand(10, 64).contiguous()
    one, other = before.clone(), before.clone()
    one[2], other[7] = -1.0, -2.0
    mine, theirs = side_by_side(Written.between(before, one), Written.between(before, other))
    assert mine[:, 0].tolist() == [-1.0, 7.0] and theirs[:, 0].tolist() == [2.0, -2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.uint16, torch.uint64, torch.float8_e4m3fn])
def test_parts_of_others_and_dtypes_without_most_kernels(dtype: torch.dtype):
    """A buffer may begin at any place of its memory, and have a dtype that cannot be written at indices."""
    memory = torch.arange(1, 66).to(torch.float32).to(dtype)
    before, after = memory[1:], memory[1:].clone()
    after[5:6] = memory[9:10]
    found = Written.between(before, after)
    assert torch.equal(found.whole().view(torch.uint8), after.view(torch.uint8))
    (mine, theirs) = side_by_side(found, Written.between(before, before.clone()))
    assert torch.equal(mine.view(torch.uint8), after.view(1, -1).view(torch.uint8)) and len(theirs) == 1
    assert greatest(memory[:4]) in (0.0, 4.0)


def test_a_state_of_another_shape_is_compared_whole():
    before, found = torch.zeros(4, 64), Written.between(torch.zeros(4, 64), torch.ones(2, 64))
    mine, theirs = side_by_side(Written.between(before, before), found)
    assert mine.shape == (4, 64) and theirs.shape == (2, 64)


def test_a_row_that_only_one_call_wrote_is_a_fault():
    before = torch.randn(100, 64)
    after = before.clone()
    after[3] += 1
    want, got = (Run([], [], states={"cache": Written.between(before, state)}) for state in (before, after))
    assert set(apart(want, got, SCALE).wrong) == {"state cache"}
    assert not apart(want, want, SCALE).wrong


def test_what_the_original_moves_of_a_state_is_asked_where_it_is_beyond_the_tolerance():
    before = torch.zeros(100, 64)
    left = [before.clone() for _ in range(3)]
    for state, value in zip(left, (1.0, 1 + 1e-5, 1 + 1e-4)):
        state[5] = value
    want, moved, got = ({"cache": Written.between(before, state)} for state in left)
    assert not apart(Run([], [], lambda: Run([], [], states=moved), want), Run([], [], states=got), SCALE).wrong
    assert apart(Run([], [], lambda: Run([], [], states=want), want), Run([], [], states=got), SCALE).wrong


def test_the_greatest_number_is_finite_and_no_count():
    assert greatest(torch.tensor([1.0, -3.0, torch.inf, torch.nan])) == 3.0
    assert greatest(torch.tensor([True])) == greatest(torch.tensor([9])) == greatest(torch.empty(0)) == 0.0
