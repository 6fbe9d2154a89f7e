"""`remove_self_copies`: a copy of a tensor onto itself goes, every other one stays."""

import pytest
import torch
from graphs import assert_same_numbers, run_pass, targets, trace

from aotair.passes import remove_self_copies

SQUARE = torch.arange(16.0).view(4, 4) / 9 + 0.1


def test_self_copies_go_and_others_stay():
    def function(x, y):
        torch.ops.aten.copy_.default(x, torch.ops.aten.add_.Tensor(x, 1))
        torch.ops.aten.copy_.default(y, x)
        torch.ops.aten.copy_.default(y, y.t())
        return (y + 0,)

    module = trace(function, SQUARE.clone(), SQUARE.clone())
    assert run_pass(remove_self_copies, module).count == 1
    assert targets(module).count("aten.copy_.default") == 2


def _itself(x):
    torch.ops.aten.copy_.default(x, x)
    return (x + 1,)


def _after_several_writes(x):
    torch.ops.aten.copy_.default(x, torch.ops.aten.mul_.Tensor(torch.ops.aten.add_.Tensor(x, 1), 2))
    return (x + 1,)


def _used_afterwards(x):
    return (torch.ops.aten.copy_.default(x, x).relu() + x,)


@pytest.mark.parametrize("function", [_itself, _after_several_writes, _used_afterwards])
@pytest.mark.parametrize("x", [SQUARE, SQUARE[:1, :1], SQUARE[:0], SQUARE.t(), SQUARE.long()])
def test_the_copy_goes_and_the_numbers_stay(function, x):
    module = assert_same_numbers(remove_self_copies, function, x)
    assert "aten.copy_.default" not in targets(module)


def _another_part_of_it(x):
    torch.ops.aten.copy_.default(x[:2], x[2:])
    return (x + 1,)


def _a_copy_of_it(x):
    torch.ops.aten.copy_.default(x, x.clone())
    return (x + 1,)


@pytest.mark.parametrize("function", [_another_part_of_it, _a_copy_of_it])
def test_a_copy_of_something_else_stays(function):
    module = assert_same_numbers(remove_self_copies, function, SQUARE)
    assert targets(module).count("aten.copy_.default") == 1


def test_no_rewrites_are_made_where_none_may_be():
    module = trace(_itself, SQUARE)
    assert run_pass(remove_self_copies, module, limit=0).count == 0
    assert targets(module).count("aten.copy_.default") == 1
