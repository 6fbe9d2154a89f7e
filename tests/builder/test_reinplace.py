"""The reinplace passes: they fire, they decline for each of their reasons, and no number changes."""

import pytest
import torch
from graphs import assert_same_numbers, reasons, run_pass, targets, trace

from aotair.passes import reinplace_inplaceable_ops, reinplace_input_mutated_ops, remove_self_copies

X = torch.arange(12.0).view(3, 4) / 7 + 0.1
SQUARE = torch.arange(16.0).view(4, 4) / 9 + 0.1


# ---- intermediates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "inputs", "left"),
    [
        (lambda x: ((x * 2).add(1),), (X,), ["aten.mul.Tensor", "aten.add_.Tensor"]),
        (lambda x: ((x * 2).relu().neg(),), (X,), ["aten.mul.Tensor", "aten.relu_.default", "aten.neg_.default"]),
        (lambda x: ((x * 2).view(4, 3).exp(),), (X,), ["aten.mul.Tensor", "aten.view.default", "aten.exp_.default"]),
        (lambda x: ((x * 2)[1:].add(1),), (X,), ["aten.mul.Tensor", "aten.slice.Tensor", "aten.add_.Tensor"]),
        (lambda x: ((x * 2).t().add(1),), (X,), ["aten.mul.Tensor", "aten.t.default", "aten.add_.Tensor"]),
        (
            lambda x: ((x * 2).index_copy(0, torch.tensor([1]), x[:1]),),
            (X,),
            None,
        ),
        (
            lambda x: ((x * 2).masked_fill(x > 1, 0.0),),
            (X,),
            ["aten.mul.Tensor", "aten.gt.Scalar", "aten.masked_fill_.Scalar"],
        ),
        (lambda x, y: ((x * 2).add(y),), (X, X[:1]), ["aten.mul.Tensor", "aten.add_.Tensor"]),  # broadcast of the other
    ],
)
def test_intermediates_fire(function, inputs, left):
    module = assert_same_numbers(reinplace_inplaceable_ops, function, *inputs)
    found = targets(module)
    assert found == left if left else any(name.endswith("_.default") for name in found)


def _used_later(x):
    y = x * 2
    return y + 1, y.sum(0)


def _alias_used_later(x):
    y = x * 2
    z = y.view(4, 3)
    return y.add(1), z.sum(0)


def _returned(x):
    y = x * 2
    return y, y.relu()


def _alias_returned(x):
    y = x * 2
    return y[0], y.relu()


def _twice(x):
    y = (x * 2).relu()
    return y, y


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        (lambda x: (x.add(1),), (X,), "is an input, a parameter, or looks at one"),
        (lambda x: (x.view(4, 3).add(1),), (X,), "is an input, a parameter, or looks at one"),
        (lambda x: (x.split(2)[0].add(1),), (SQUARE,), "is an input, a parameter, or looks at one"),
        (_used_later, (X,), "is used later"),
        (_alias_used_later, (X,), "is used later"),
        (_returned, (X,), "is used later"),
        (_alias_returned, (X,), "is used later"),
        (lambda x: ((x * 2).add((x * 2).double()),), (X,), "its result is torch.float64"),
        (lambda x: ((x * 2).int().div(2),), (X,), "its result is torch.float32"),
        (lambda x: ((x[:1] * 2).add(x),), (X,), "has another shape"),
        (lambda x: ((x[:, :1] * 2).expand(3, 4).add(1),), (X,), "strides|share memory"),
        (lambda x: ((y := x * 2).add(y.t()),), (SQUARE,), "is used later|shares the memory"),
        (lambda x: ((y := x * 2).mul(y),), (X,), "shares the memory"),
        (_twice, (X,), "returned more than once"),
    ],
)
def test_intermediates_decline(function, inputs, reason, caplog):
    module = trace(function, *inputs)
    before = targets(module)
    said = reasons(caplog, reinplace_inplaceable_ops, module)
    assert any(part in said for part in reason.split("|")), said
    assert targets(module) == before
    assert_same_numbers(reinplace_inplaceable_ops, function, *inputs)


def test_ops_without_an_inplace_form_are_no_candidates(caplog):
    module = trace(lambda x: ((x * 2).softmax(-1),), X)
    assert reasons(caplog, reinplace_inplaceable_ops, module).count("softmax") == 0
    assert targets(module)[-1] == "aten._softmax.default"


def test_an_inplace_form_that_the_device_lacks_is_not_taken():
    function = lambda x: (torch.nn.functional.gelu(x * 2),)  # noqa: E731
    for target, last in (("cpu", "aten.gelu_.default"), ("npu", "aten.gelu.default")):
        module = trace(function, X)
        run_pass(reinplace_inplaceable_ops, module, target=target)
        assert targets(module)[-1] == last


def test_the_number_of_rewrites_can_be_limited():
    module = trace(lambda x: ((x * 2).relu().neg().exp(),), X)
    assert run_pass(reinplace_inplaceable_ops, module, limit=2).count == 2
    assert targets(module) == ["aten.mul.Tensor", "aten.relu_.default", "aten.neg_.default", "aten.exp.default"]


# ---- inputs that the model writes into ------------------------------------------------------------------------------

CACHE = torch.zeros(4, 6)
ROW = torch.ones(1, 6)
INDEX = torch.tensor([2])


def copy_back(cache, value):
    return torch.ops.aten.copy_.default(cache, value)


def _index_copy(cache, row, index):
    new = cache.index_copy(0, index, row)
    copy_back(cache, new)
    return (new.sum(0),)


def _two_in_a_row(cache, row, index):
    new = cache.index_copy(0, index, row).index_add(0, index, row)
    copy_back(cache, new)
    return (new * 2,)


def _slice_scatter(cache, row, index):
    copy_back(cache, cache.slice_scatter(row, 0, 1, 2))
    return (row + 1,)


def _select_scatter(cache, row, index):
    copy_back(cache, cache.select_scatter(row[0], 0, 3))
    return (row + 1,)


def _slice_then_index(cache, row, index):
    new = cache.slice_scatter(row, 0, 0, 1).index_copy(0, index, row)
    copy_back(cache, new)
    return (new[0] * 1,)


def _through_views(cache, row, index):
    new = cache.view(2, 2, 6).view(4, 6).index_put((index,), row)
    copy_back(cache, new.view(2, 12).view(4, 6))
    return (new * 1,)


def _transposed(cache, row, index):
    copy_back(cache, cache.t().index_copy(1, index, row.t()).t())
    return (row + 1,)


MUTATED = [_index_copy, _two_in_a_row, _slice_scatter, _select_scatter, _slice_then_index, _through_views]


@pytest.mark.parametrize("function", MUTATED, ids=lambda f: f.__name__.strip("_"))
def test_inputs_are_written_in_place(function):
    module = assert_same_numbers(reinplace_input_mutated_ops, function, CACHE, ROW, INDEX)
    (cache, *_) = module.graph.nodes
    whole = [n for n in module.graph.nodes if n.target is torch.ops.aten.copy_.default and n.args[0] is cache]
    assert whole == [], "the whole cache is still copied"
    assert not any(n.target is torch.ops.aten.index_copy.default for n in module.graph.nodes)


def _old_value_read_later(cache, row, index):
    new = cache.index_copy(0, index, row)
    old = cache.sum(0)
    copy_back(cache, new)
    return (old,)


def _old_view_read_later(cache, row, index):
    view = cache.view(2, 12)
    new = cache.index_copy(0, index, row)
    old = view.sum(0)
    copy_back(cache, new)
    return (old,)


def _old_value_is_an_argument(cache, row, index):
    new = cache.index_copy(0, index, cache[:1])
    copy_back(cache, new)
    return (row + 1,)


def _old_view_is_an_argument_of_the_second(cache, row, index):
    view = cache[:1]
    new = cache.index_copy(0, index, row).index_add(0, index, view)
    copy_back(cache, new)
    return (row + 1,)


def _intermediate_read_later(cache, row, index):
    first = cache.index_copy(0, index, row)
    new = first.index_add(0, index, row)
    seen = first.sum(0)
    copy_back(cache, new)
    return (seen,)


def _returned_too(cache, row, index):
    new = cache.index_copy(0, index, row)
    copy_back(cache, new)
    return (new,)


def _of_another_tensor(cache, row, index):
    copy_back(cache, (cache + 0).double().float().sin())
    return (row + 1,)


def _not_from_it(cache, row, index):
    copy_back(cache, row.expand(4, 6).contiguous())
    return (row + 1,)


def _turned(cache, row, index):
    copy_back(cache, cache.view(6, 4).index_copy(1, index, row.t()).t())
    return (row + 1,)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_old_value_read_later, "uses the old value"),
        (_old_view_read_later, "uses the old value"),
        (_old_value_is_an_argument, "shares the memory of"),
        (_old_view_is_an_argument_of_the_second, "shares the memory of|uses the old value"),
        (_intermediate_read_later, "uses the old value"),
        (_returned_too, "is returned too"),
        (_of_another_tensor, "is not made from"),
        (_not_from_it, "is not made from"),
        (_transposed, "other strides|do not lie in memory alike"),
        (_turned, "do not lie in memory alike"),
    ],
    ids=lambda f: f.__name__.strip("_") if callable(f) else "",
)
def test_inputs_are_left_to_the_copy(function, reason, caplog):
    module = trace(function, CACHE, ROW, INDEX)
    before = targets(module)
    said = reasons(caplog, reinplace_input_mutated_ops, module)
    assert any(part in said for part in reason.split("|")), said
    assert targets(module) == before
    assert_same_numbers(reinplace_input_mutated_ops, function, CACHE, ROW, INDEX)


def test_both_passes_after_one_another():
    """The first makes the second op of a chain in-place, the second moves the chain into the input."""

    def function(cache, row, index):
        new = cache.index_copy(0, index, row).index_add(0, index, row)
        twice = new * 2
        copy_back(cache, new)
        return (twice,)

    module = trace(function, CACHE, ROW, INDEX)
    want = module(CACHE.clone(), ROW, INDEX)[0]
    for step in (reinplace_inplaceable_ops, reinplace_input_mutated_ops, remove_self_copies):
        run_pass(step, module)
    assert targets(module) == ["aten.index_copy_.default", "aten.index_add_.default", "aten.mul.Tensor"]
    cache = CACHE.clone()
    assert torch.equal(module(cache, ROW, INDEX)[0], want)
    assert torch.equal(cache * 2, want)


# ---- self-copies ----------------------------------------------------------------------------------------------------


def test_self_copies_go_and_others_stay():
    def function(x, y):
        torch.ops.aten.copy_.default(x, torch.ops.aten.add_.Tensor(x, 1))
        torch.ops.aten.copy_.default(y, x)
        torch.ops.aten.copy_.default(y, y.t())
        return (y + 0,)

    module = trace(function, SQUARE.clone(), SQUARE.clone())
    assert run_pass(remove_self_copies, module).count == 1
    assert targets(module).count("aten.copy_.default") == 2
