"""`reinplace_input_mutated_ops`: inputs are written in place, or left to the copy for a reason; no number changes."""

import aotairtest
import pytest
import torch
from graphs import assert_same_numbers, reasons, run_pass, targets, trace

from aotair.passes import reinplace_inplaceable_ops, reinplace_input_mutated_ops, remove_self_copies, streams

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


# ---- ops with several results, and what is said ----------------------------------------------------------------------

several = aotairtest.ops
forms = aotairtest.forms
forms = aotairtest.forms
K, V = torch.ones(4, 6), torch.full((4, 6), 2.0)
X = torch.arange(24.0).view(4, 6)


def _given_back(x, k, v):
    first, second, keys, values = several.rope_functional(x, k, v)
    seen = keys.sum() + values.sum()
    copy_back(k, keys)
    copy_back(v, values)
    return first, second, seen


@pytest.mark.parametrize("size", [(4, 6), (1, 1), (0, 6)])
def test_each_new_value_goes_to_the_input_of_its_old_one(size):
    module = assert_same_numbers(reinplace_input_mutated_ops, _given_back, *(torch.ones(size) * n for n in (1, 2, 3)))
    assert "aotairtest.rope.default" in targets(module) and "aten.copy_.default" not in targets(module)


def _crossed(x, k, v):
    _, _, keys, values = several.rope_functional(x, k, v)
    copy_back(k, values)
    copy_back(v, keys)
    return (x + 1,)


def _of_an_intermediate(x, k, v):
    _, _, keys, values = several.rope_functional(x, k * 2, v)
    copy_back(k, keys)
    copy_back(v, values)
    return (x + 1,)


def _given_as_another_argument(x, k, v):
    _, _, keys, values = several.rope_functional(k, k, v)
    copy_back(k, keys)
    copy_back(v, values)
    return (x + 1,)


def _through_a_view(x, k, v):
    _, _, keys, values = several.rope_functional(k.view(4, 6), k, v)
    copy_back(k, keys)
    copy_back(v, values)
    return (x + 1,)


def _read_later(x, k, v):
    _, _, keys, values = several.rope_functional(x, k, v)
    old = v.sum(0)
    copy_back(k, keys)
    copy_back(v, values)
    return (old,)


def _returned_as_well(x, k, v):
    _, _, keys, values = several.rope_functional(x, k, v)
    copy_back(k, keys)
    copy_back(v, values)
    return (values,)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_crossed, "its new value of k_1 is not copied back into an input"),
        (_of_an_intermediate, "its new value of mul is not copied back into an input"),
        (_through_a_view, "another argument shares the memory of k_1"),
        (_read_later, "sum_1 uses the old value of v_1 later"),
        (_returned_as_well, "its new value of v_1 is returned too"),
    ],
)
def test_an_op_of_several_results_stays_whole_or_not_at_all(function, why):
    module = assert_same_numbers(reinplace_input_mutated_ops, function, X, K, V)
    assert "aotairtest.rope_functional.default" in targets(module)
    texts = [one.text for one in run_pass(reinplace_input_mutated_ops, trace(function, X, K, V)).accounts]
    assert f"reinplace failed: {why}" in texts


def test_an_op_of_several_results_that_may_not_be_rewritten_stays():
    module = trace(_given_back, X, K, V)
    assert run_pass(reinplace_input_mutated_ops, module, limit=0).count == 0
    assert "aotairtest.rope_functional.default" in targets(module)


def _twice_given(cache, row, index):
    copy_back(cache, cache.add(cache))
    return (row + 1,)


def _broadcast(cache, row, index):
    copy_back(cache, cache.unsqueeze(0).add(row.expand(4, 6)).squeeze(0).clone())
    return (row + 1,)


def _a_scatter_of_a_number(cache, row, index):
    copy_back(cache, cache.double().float() * 1)
    return (row + 1,)


def test_what_is_given_its_first_argument_twice_stays():
    module = assert_same_numbers(reinplace_input_mutated_ops, _twice_given, CACHE + 1, ROW, INDEX)
    accounts = run_pass(reinplace_input_mutated_ops, trace(_twice_given, CACHE, ROW, INDEX)).accounts
    assert "aten.add.Tensor" in targets(module)
    assert [account.text for account in accounts] == ["add is given cache_1 twice"]


def test_clones_on_the_way_are_left_out():
    module = assert_same_numbers(reinplace_input_mutated_ops, _broadcast, CACHE + 1, ROW, INDEX)
    assert "aten.clone.default" not in targets(module) and "aten.copy_.default" not in targets(module)


def test_what_was_made_of_another_dtype_is_not_made_of_it():
    function = _a_scatter_of_a_number
    module = assert_same_numbers(reinplace_input_mutated_ops, function, CACHE, ROW, INDEX)
    assert "aten.copy_.default" in targets(module)


def test_an_inplace_form_that_the_device_lacks_is_not_taken():
    def function(x, row):
        copy_back(x, torch.nn.functional.gelu(x))
        return (row + 1,)

    texts = {}
    for target in ("cpu", "npu"):
        edits = run_pass(reinplace_input_mutated_ops, trace(function, X, ROW), target=target)
        texts[target] = [(account.rewritten, account.text) for account in edits.accounts]
    assert texts == {
        "cpu": [(True, "writes into x_1")],
        "npu": [(False, "npu has no kernel for aten.gelu_.default")],
    }


def test_a_graph_of_several_streams_is_left_alone(caplog):
    def function(x, row):
        torch.ops.air.scope_enter(["_user_stream_label"], ["side"])
        other = row * 2
        torch.ops.air.scope_exit()
        copy_back(x, x.add(1))
        return (other,)

    module = trace(function, X, ROW)
    run_pass(streams, module)
    with caplog.at_level("INFO", logger="aotair"):
        assert run_pass(reinplace_input_mutated_ops, module).count == 0
    assert "reinplace_input_mutated_ops: skipped, because the graph has several streams" in caplog.text
