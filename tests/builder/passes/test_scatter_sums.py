"""Sums of which each rank reads its rows are scattered: fires, declines, and what a graph then computes.

The numbers of whole programs, over all their ranks, are compared in `builder/parallel/test_by_rows.py`.
"""

import pytest
import torch
from graphs import reasons, run_pass, targets, trace

from aotair.ops import rows
from aotair.passes import merge_duplicates, scatter_sums

air = torch.ops.air
(X, Y, Z), BIAS, NUMBER = torch.randn(3, 2, 3, 8).unbind(), torch.randn(8), torch.tensor([1])
SUM, OWN, REDUCED = "air.sum_rows.default", "air.own_rows.default", "air.all_reduce.default"


def summed(x: torch.Tensor, axis: str = "tp", reduce: str = "sum") -> torch.Tensor:
    return air.all_reduce(x, reduce, axis)


def own(x: torch.Tensor, number: torch.Tensor, axis: str = "tp", ranks: int = 2) -> torch.Tensor:
    return air.own_rows(x, number, ranks, axis)


def after(function, *inputs: torch.Tensor, limit: int | None = None) -> list[str]:
    module = trace(function, *inputs)
    shapes = [node.meta["val"].shape for node in module.graph.output_node().all_input_nodes]
    run_pass(scatter_sums, module, limit)
    run_pass(merge_duplicates, module)
    assert [node.meta["val"].shape for node in module.graph.output_node().all_input_nodes] == shapes
    return targets(module)


def test_the_way_from_a_sum_to_its_rows_is_made_of_rows():
    def function(x, residual, bias, number):
        y = (summed(x) + bias).to(torch.float64) + residual.double()
        return (own(y * 2, number),)

    found = after(function, X, Y, BIAS, NUMBER)
    assert found.count(SUM) == 1 and REDUCED not in found
    assert found.count(OWN) == 1  # of the residual, which all ranks have


def test_a_residual_stays_in_rows_from_block_to_block():
    def function(x, y, z, number):
        first = summed(x)
        second = first + summed(y.view(6, 8)).view(2, 3, 8)
        third = second + summed(z)
        return tuple(own(one, number) for one in (first, second, third))

    found = after(function, X, Y, Z, NUMBER)
    assert found.count(SUM) == 3 and found.count("aten.add.Tensor") == 2
    assert REDUCED not in found and OWN not in found


def test_what_is_read_whole_stays_whole(caplog):
    def function(x, y, number):
        first = summed(x)
        second = first + summed(y)
        return own(second, number), first

    found = after(function, X, Y, NUMBER)
    assert found.count(REDUCED) == 1 and found.count(SUM) == 1
    assert "output reads all of its rows" in reasons(caplog, scatter_sums, trace(function, X, Y, NUMBER))


@pytest.mark.parametrize(
    "mixes",
    [
        lambda x: x + x.sum(1, keepdim=True),
        lambda x: x.flip(1),
        lambda x: x.softmax(1),
        lambda x: x.view(2, 8, 3).sigmoid().reshape(2, 3, 8),
        lambda x: x.transpose(0, 1).contiguous(),
        lambda x: x * x[:1],
        lambda x: torch.nn.functional.dropout(x, 0.5),
    ],
)
def test_what_mixes_rows_is_read_whole(mixes):
    found = after(lambda x, number: (own(mixes(summed(x)), number),), X, NUMBER)
    assert REDUCED in found and SUM not in found


def test_other_axes_and_other_sums_are_left_alone():
    assert REDUCED in after(lambda x, number: (own(summed(x, "ep"), number),), X, NUMBER)
    assert REDUCED in after(lambda x, number: (own(summed(x, reduce="max"), number),), X, NUMBER)

    def two(x, y, number):
        return own(summed(x), number), own(summed(y, "ep"), number, "ep", 4)

    found = after(two, X, Y, NUMBER)
    assert found.count(SUM) == 2 and REDUCED not in found


def test_a_copy_in_channels_last_is_read_whole():
    def function(x, number):
        return (own(summed(x).contiguous(memory_format=torch.channels_last), number),)

    assert REDUCED in after(function, torch.randn(2, 3, 4, 8), NUMBER)


def test_what_reads_all_rows_in_the_end_is_named(caplog):
    def function(x, y, number):
        residual = summed(x) + y
        return own(residual, number), (residual * 2)[:, :1]

    assert "slice" in reasons(caplog, scatter_sums, trace(function, X, Y, NUMBER))


def test_what_is_written_over_is_left_alone():
    def function(x, number):
        y = summed(x)
        part = own(y, number)
        y.add_(1)
        return part, y

    assert REDUCED in after(function, X, NUMBER)


def test_a_pass_without_leave_changes_nothing():
    def function(x, y, number):
        return (own(summed(x) + summed(y), number),)

    assert after(function, X, Y, NUMBER, limit=0).count(REDUCED) == 2
    found = after(function, X, Y, NUMBER, limit=1)
    assert found.count(REDUCED) == found.count(SUM) == found.count(OWN) == 1


def test_where_nothing_is_summed_nothing_changes():
    def function(x, number):
        return (own(x * 2, number),)

    module = trace(function, X, NUMBER)
    before = str(module.graph)
    assert not run_pass(scatter_sums, module).count and str(module.graph) == before
    assert set(targets(module)) & set(map(str, rows.TAKEN_APART)) == {OWN}
