"""`reinplace_input_mutated_ops`: inputs are written in place, or left to the copy for a reason; no number changes."""

import pytest
import torch
from graphs import assert_same_numbers, reasons, run_pass, targets, trace

from aotair.passes import reinplace_inplaceable_ops, reinplace_input_mutated_ops, remove_self_copies

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
