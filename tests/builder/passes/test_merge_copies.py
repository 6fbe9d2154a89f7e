"""The pass `merge_copies`: writes into slices go straight to their place, and what must not is left alone."""

import pytest
import torch
from graphs import assert_same_numbers, reasons, run_pass, targets, trace

from aotair.builder import plan
from aotair.passes import merge_copies, streams

aten = torch.ops.aten
CACHE, ROW = torch.arange(24.0).view(4, 6), torch.full((1, 6), 7.0)


def _copied_twice(cache, row):
    part = aten.slice.Tensor(cache, 0, 1, 2)
    aten.copy_.default(part, aten.copy.default(part, row))
    return (cache.sum(0),)


def _part_of_a_part(cache, row):
    part = aten.slice.Tensor(cache, 0, 1, 2)
    inner = aten.slice.Tensor(part, 1, 2, 5)
    new = aten.slice_scatter.default(aten.slice.Tensor(cache, 0, 1, 2), aten.add.Tensor(inner, 1), 1, 2, 5)
    aten.copy_.default(aten.slice.Tensor(cache, 0, 1, 2), new)
    return (cache + row,)


def _onto_itself(cache, row):
    part = aten.select.int(cache, 0, 1)
    new = aten.select_scatter.default(part, aten.select.int(part, 0, 3), 0, 3)
    aten.copy_.default(aten.select.int(cache, 0, 1), new)
    return (cache + row,)


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (_copied_twice, ["aten.slice.Tensor", "aten.copy.default", "aten.copy_.default"]),
        (_part_of_a_part, None),
        (_onto_itself, None),
    ],
)
def test_fires(function, left):
    module = assert_same_numbers(merge_copies, function, CACHE, ROW)
    copies = [node for node in module.graph.nodes if node.target is aten.copy_.default]
    if left:
        assert targets(module)[:3] == left and copies[0].args[1].name == "row_1"
    for node in copies:
        assert "scatter" not in str(node.args[1].target)
    assert bool(copies) == (function is not _onto_itself)


def _shifted(cache, row):
    above, below = aten.slice.Tensor(cache, 0, 1, 4), aten.slice.Tensor(cache, 0, 0, 3)
    aten.copy_.default(above, aten.copy.default(above, below))
    return (cache + row,)


def _shifted_within(cache, row):
    part = aten.slice.Tensor(cache, 0, 1, 3)
    new = aten.slice_scatter.default(part, aten.slice.Tensor(cache, 0, 0, 1), 0, 1, 2)
    aten.copy_.default(part, new)
    return (cache + row,)


def _written_between(cache, row):
    part = aten.slice.Tensor(cache, 0, 1, 2)
    made = row * 2
    copied = aten.copy.default(part, made)
    aten.add_.Tensor(made, 1)
    aten.copy_.default(part, copied)
    return (cache + made,)


def _target_written_between(cache, row):
    part = aten.slice.Tensor(cache, 0, 1, 3)
    new = aten.slice_scatter.default(part, row * 2, 0, 0, 1)
    aten.add_.Tensor(cache, 1)
    aten.copy_.default(part, new)
    return (cache + row,)


def _other_part(cache, row):
    new = aten.slice_scatter.default(aten.slice.Tensor(cache, 0, 0, 2), row * 2, 0, 0, 1)
    aten.copy_.default(aten.slice.Tensor(cache, 0, 1, 3), new)
    return (cache + row,)


def _narrowed(cache, row):
    part = aten.slice.Tensor(cache, 0, 1, 2)
    aten.copy_.default(part, aten.copy.default(aten.empty.memory_format([1, 6], dtype=torch.int32), row * 1.5))
    return (cache + row,)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_shifted, "shares the memory"),
        (_shifted_within, "shares the memory"),
        (_written_between, "writes the memory of mul before"),
        (_target_written_between, "writes the memory of"),
        (_other_part, ""),
        (_narrowed, ""),
    ],
)
def test_declines(function, reason, caplog):
    module = assert_same_numbers(merge_copies, function, CACHE, ROW)
    assert targets(module) == targets(trace(function, CACHE, ROW))
    assert reason in reasons(caplog, merge_copies, module)


def test_several_streams_are_left_alone(caplog):
    def function(cache, row):
        torch.ops.air.scope_enter(["_user_stream_label"], ["side"])
        other = row + 1
        torch.ops.air.scope_exit()
        return (*_copied_twice(cache, row), other)

    module = trace(function, CACHE, ROW)
    run_pass(streams, module)
    assert run_pass(merge_copies, module).count == 0


class Slices(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 256, 256))

    def forward(self, new, other):
        self.cache[:, 5:6, 3:] = new
        self.cache[2, ..., 1] += 1
        other[:, 0:1] = new
        return self.cache[:, :4].sum(-1)


def test_a_write_into_a_slice_takes_no_memory_for_the_whole():
    recipe = {
        "name": "slices",
        "model": {"factory": f"{__file__}:Slices"},
        "inputs": {
            "new": {"shape": [4, 1, 253], "dtype": "float32"},
            "other": {"shape": [4, 256, 253], "dtype": "float32", "mutated": True},
        },
    }
    assert plan(recipe).arena < 4 * 253 * 4 * 3
