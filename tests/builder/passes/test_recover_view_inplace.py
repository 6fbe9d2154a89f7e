"""`recover_view_inplace`: what export made of a write through a view is that write again, and nothing else changes."""

import pytest
import torch
from graphs import assert_same_numbers, reasons, run_pass, targets, trace

from aotair.passes import recover_view_inplace, streams

aten, air = torch.ops.aten, torch.ops.air
ROW = torch.full((1, 6), 7.0)


def cache(dtype=torch.float32) -> torch.Tensor:
    return torch.arange(24).view(4, 6).to(dtype)


def _into_a_slice(c, row):
    aten.copy_.default(c, c.slice_scatter(row, 0, 1, 2))
    return (row + 1,)


def _into_a_row(c, row):
    aten.copy_.default(c, c.select_scatter(row[0], 0, 3))
    return (row + 1,)


def _into_the_diagonal(c, row):
    aten.copy_.default(c, c.diagonal_scatter(row[0, :4]))
    return (row + 1,)


def _through_a_view(c, row):
    aten.copy_.default(c, c.view(2, 12).index_put((torch.tensor([1]),), row.repeat(1, 2)).view(4, 6))
    return (row + 1,)


def _two_parts(c, row):
    aten.copy_.default(c, c.slice_scatter(row, 0, 1, 2).slice_scatter(row * 2, 0, 3, 4))
    return (row + 1,)


def _an_empty_part(c, row):
    aten.copy_.default(c, c.slice_scatter(row[:0], 0, 2, 2))
    return (row + 1,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize(
    "function", [_into_a_slice, _into_a_row, _into_the_diagonal, _through_a_view, _two_parts, _an_empty_part]
)
def test_a_write_through_a_view_is_put_together_again(function, dtype):
    module = assert_same_numbers(recover_view_inplace, function, cache(dtype), ROW.to(dtype))
    (whole, *_) = module.graph.nodes
    assert not any(
        node.args[0] is whole for node in module.graph.find_nodes(op="call_function", target=aten.copy_.default)
    )
    assert not any("scatter" in name or name == "aten.index_put.default" for name in targets(module))


def _no_view(c, row):
    aten.copy_.default(c, c.masked_fill(c > 5, 0) + 1)
    return (row + 1,)


def _not_made_of_it(c, row):
    aten.copy_.default(c, row.expand(4, 6) * 2)
    return (row + 1,)


def _of_another_dtype(c, row):
    aten.copy_.default(c, c.double().slice_scatter(row.double(), 0, 1, 2))
    return (row + 1,)


@pytest.mark.parametrize("function", [_no_view, _not_made_of_it, _of_another_dtype])
def test_what_is_no_write_through_a_view_is_no_candidate(function):
    module = assert_same_numbers(recover_view_inplace, function, cache(), ROW)
    assert targets(module) == targets(trace(function, cache(), ROW))
    assert run_pass(recover_view_inplace, module).accounts == []


def _old_value_used_later(c, row):
    new = c.slice_scatter(row, 0, 1, 2)
    old = c.sum(0)
    aten.copy_.default(c, new)
    return (old,)


def _returned_too(c, row):
    new = c.slice_scatter(row, 0, 1, 2)
    aten.copy_.default(c, new)
    return (new,)


@pytest.mark.parametrize(
    ("function", "why"),
    [(_old_value_used_later, "sum_1 uses the old value of c_1 later"), (_returned_too, "returned too")],
)
def test_what_needs_both_values_keeps_both_and_says_why(function, why, caplog):
    module = assert_same_numbers(recover_view_inplace, function, cache(), ROW)
    assert targets(module) == targets(trace(function, cache(), ROW))
    assert why in reasons(caplog, recover_view_inplace, module)


def test_a_graph_of_several_streams_is_left_alone(caplog):
    def function(c, row):
        air.scope_enter(["_user_stream_label"], ["side"])
        other = row + 1
        air.scope_exit()
        aten.copy_.default(c, c.slice_scatter(row, 0, 1, 2))
        return (other,)

    module = trace(function, cache(), ROW)
    run_pass(streams, module)
    before = targets(module)
    with caplog.at_level("INFO", logger="aotair"):
        assert run_pass(recover_view_inplace, module).count == 0
    assert targets(module) == before
    assert "recover_view_inplace: skipped, because the graph has several streams" in caplog.text


def test_no_rewrites_are_made_where_none_may_be():
    module = trace(_into_a_slice, cache(), ROW)
    before = targets(module)
    assert run_pass(recover_view_inplace, module, limit=0).count == 0 and targets(module) == before
