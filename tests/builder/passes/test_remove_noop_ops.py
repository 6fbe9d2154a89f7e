"""`remove_noop_ops`: what changes nothing goes, unless a copy keeps two values apart."""

import pytest
import torch
from graphs import assert_same_numbers, reasons, run_pass, targets, trace

from aotair.passes import remove_noop_ops


def test_noops_fire():
    module = trace(lambda x: (x.clone().view(2, 3).transpose(1, 1)[0:2] + 1,), torch.zeros(2, 3))
    assert run_pass(remove_noop_ops, module).count >= 3
    assert targets(module) == ["aten.add.Tensor"]


def test_a_copy_over_a_tensor_of_the_same_layout_is_its_source():
    copy = torch.ops.aten.copy.default
    module = trace(lambda x, y: (copy(x, y * 2) + 1,), torch.zeros(2, 3), torch.ones(2, 3))
    assert run_pass(remove_noop_ops, module).count == 1
    assert targets(module) == ["aten.mul.Tensor", "aten.add.Tensor"]
    module = trace(lambda x, y: (copy(x, y * 2) + 1,), torch.zeros(2, 3), torch.ones(3))  # broadcast
    assert run_pass(remove_noop_ops, module).count == 0
    module = trace(lambda x, y: (copy(x, y * 2) + 1,), torch.zeros(2, 3), torch.ones(2, 3).double())
    assert run_pass(remove_noop_ops, module).count == 0


def test_noops_decline_where_something_changes():
    cases = [
        lambda x: (x.t().clone(memory_format=torch.contiguous_format) + 1,),  # other strides
        lambda x: (x.to(torch.float64) + 1,),  # other dtype
        lambda x: (x[:1] + 1,),  # other shape
        lambda x: (x.expand(4, 2, 3) + 1,),
        lambda x: (x.view(3, 2) + 1,),
    ]
    for case in cases:
        module = trace(case, torch.zeros(2, 3))
        before = targets(module)
        assert run_pass(remove_noop_ops, module).count == 0
        assert targets(module) == before


def test_noops_decline_where_the_memory_is_written():
    def saves_the_old_value(x):
        old = x.clone()
        x.copy_(x + 1)
        return (old,)

    module = trace(saves_the_old_value, torch.zeros(2, 3))
    assert run_pass(remove_noop_ops, module).count == 0
    assert "aten.clone.default" in targets(module)


def test_noops_keep_the_numbers():
    function = lambda x: (x.clone().view(2, 3)[0:2] * 2 + x.transpose(0, 0),)  # noqa: E731
    module = trace(function, torch.zeros(2, 3))
    run_pass(remove_noop_ops, module)
    x = torch.randn(2, 3)
    assert torch.equal(module(x)[0], function(x)[0])


def test_a_returned_copy_of_an_input_is_kept_and_others_are_not():
    def function(x):
        return x.clone(), x.clone() + 1, (x + 1).clone()

    module = trace(function, torch.ones(2, 3))
    run_pass(remove_noop_ops, module)
    assert targets(module).count("aten.clone.default") == 1
    assert str(module.graph.output_node().args[0][0].target) == "aten.clone.default"


aten = torch.ops.aten


@pytest.mark.parametrize(
    "make",
    [
        lambda x: aten.alias.default(x),
        lambda x: aten.clone.default(x),
        lambda x: aten.detach.default(x),
        lambda x: aten.expand.default(x, list(x.shape)),
        lambda x: aten.permute.default(x, list(range(x.dim()))),
        lambda x: aten.repeat.default(x, [1] * x.dim()),
        lambda x: aten.slice.Tensor(x, 0, 0, 99),
        lambda x: aten.view.default(x, list(x.shape)),
        lambda x: aten._to_copy.default(x, dtype=x.dtype),
        lambda x: aten._unsafe_view.default(x, list(x.shape)),
        lambda x: aten.lift_fresh_copy.default(x),
    ],
)
@pytest.mark.parametrize("x", [torch.ones(2, 3), torch.ones(1, 1), torch.ones(0, 3), torch.ones(2, 3).int()])
def test_each_op_that_hands_its_argument_on_goes(make, x):
    module = assert_same_numbers(remove_noop_ops, lambda x: (make(x * 2) + 1,), x)
    assert targets(module) == ["aten.mul.Tensor", "aten.add.Tensor"]


def test_a_swap_of_two_dimensions_goes_only_where_it_moves_nothing():
    ones = torch.ones(1, 1, 3)
    assert "aten.transpose.int" not in targets(assert_same_numbers(remove_noop_ops, _swapped, ones * 2))
    spread = lambda x: ((x[:, :1].expand(3, 3)).transpose(0, 1) + 1,)  # noqa: E731
    module = assert_same_numbers(remove_noop_ops, spread, torch.arange(9.0).view(3, 3))
    assert "aten.transpose.int" in targets(module)
    one = lambda x: (x.sum().expand(3, 3).transpose(0, 1) + 1,)  # noqa: E731
    module = assert_same_numbers(remove_noop_ops, one, torch.ones(2))
    assert "aten.transpose.int" in targets(module), "two dimensions that overlap are left alone"


def _swapped(x):
    return ((x * 2).transpose(0, 1) + 1,)


def _written_copy(x):
    """The copy of an input is written: the input is not to change."""
    copied = x.clone()
    copied.add_(1)
    return copied * 1, x * 2


def _written_copy_of_what_lives_on(x):
    made = x * 2
    copied = made.clone()
    copied.add_(1)
    return copied * 1, made * 2


@pytest.mark.parametrize("function", [_written_copy, _written_copy_of_what_lives_on])
def test_a_copy_that_is_written_stays_where_the_source_is_needed(function, caplog):
    module = assert_same_numbers(remove_noop_ops, function, torch.ones(2, 3))
    assert "aten.clone.default" in targets(module)
    assert "it is written into, and" in reasons(caplog, remove_noop_ops, module)


def _written_copy_of_what_dies(x):
    copied = (x * 2).clone()
    copied.add_(1)
    return (copied.clone() * 1,)


def test_a_copy_that_is_written_goes_where_nobody_needs_the_source():
    module = assert_same_numbers(remove_noop_ops, _written_copy_of_what_dies, torch.ones(2, 3))
    assert targets(module)[:2] == ["aten.mul.Tensor", "aten.add_.Tensor"]


def test_reasons_name_what_is_written_and_what_is_returned(caplog):
    def function(x, y):
        old = x.clone()
        x.copy_(y)
        return old + 1, y.clone()

    said = reasons(caplog, remove_noop_ops, trace(function, torch.ones(2), torch.ones(2)))
    assert "the memory of x_1 is written elsewhere" in said and "it is returned, and y_1 is not to be" in said


def test_no_rewrites_are_made_where_none_may_be():
    module = trace(lambda x: ((x * 2).clone() + 1,), torch.ones(2))
    assert run_pass(remove_noop_ops, module, limit=0).count == 0 and len(targets(module)) == 3


def test_products_and_quotients_with_the_number_one_go_and_others_stay():
    whole = torch.ones(3, dtype=torch.int64)
    for make in (lambda x: (x / 1.0 + 2,), lambda x: (x * 1 + 2,), lambda x: (x * 1.0 + 2,)):
        module = assert_same_numbers(remove_noop_ops, make, torch.tensor([-0.0, 1e-40, 3.0]))
        assert targets(module) == ["aten.add.Tensor"]
    for make, x in (
        (lambda x: (x / 2.0 + 2,), whole.float()),
        (lambda x: (x * True + 2,), whole.float()),
        (lambda x: (x / 1 + 2,), whole),  # of whole numbers, which gives floats
        (lambda x: (x * 1.0 + 2,), whole),
        (lambda x: (x + 0 + 2,), whole.float()),  # which makes 0 of -0
    ):
        module = trace(make, x)
        assert run_pass(remove_noop_ops, module).count == 0
