"""What is computed several times is computed once, unless someone could tell the difference."""

import pytest
import torch
from cases import recipe
from graphs import assert_same_numbers, reasons, run_pass, targets, trace

import aotair
from aotair.passes import merge_duplicates

aten, air = torch.ops.aten, torch.ops.air
X, CACHE = torch.randn(4, 6), torch.zeros(4, 6)


def _twice(x, cache):
    return (x.relu() + 1 + (x.relu() + 1),)


def _parts(x, cache):
    return (x.split(3, 1)[0] + x.split(3, 1)[0],)


@pytest.mark.parametrize(("function", "left"), [(_twice, 3), (_parts, 3)])
def test_it_merges(function, left):
    module = assert_same_numbers(merge_duplicates, function, X, CACHE)
    module.graph.eliminate_dead_code()
    assert len([n for n in module.graph.nodes if n.op == "call_function"]) == left


def _returned(x, cache):
    return x + 1, x + 1


def _returned_views(x, cache):
    return (x + 1).view(6, 4), (x + 1).t()


def _writes_a_result(x, cache):
    y, z = x + 1, x + 1
    aten.mul_.Tensor(y, 2)
    return (y + z,)


def _writes_an_argument(x, cache):
    before = cache + 1
    aten.copy_.default(cache, x)
    return (before * 2 + (cache + 1),)


def _on_two_streams(x, cache):
    y = x + 1
    air.scope_enter(["_user_stream_label"], ["side"])
    z = x + 1
    air.scope_exit()
    return (y * z,)


def _other_types(x, cache):
    return ((x + 1) * (x + 1.0) * aten.add.Tensor(x, True),)


@pytest.mark.parametrize(
    "function", [_returned, _returned_views, _writes_a_result, _writes_an_argument, _on_two_streams, _other_types]
)
def test_it_leaves_what_could_be_told_apart(function):
    module = trace(function, X, CACHE)
    before = targets(module)
    assert run_pass(merge_duplicates, module).count == 0 and targets(module) == before
    assert_same_numbers(merge_duplicates, function, X, CACHE)


def test_it_says_why(caplog):
    said = reasons(caplog, merge_duplicates, trace(_writes_a_result, X, CACHE))
    assert "returned or written into" in said


def test_random_numbers_are_drawn_each_time():
    module = trace(lambda x: (torch.rand_like(x) + torch.rand_like(x),), X)
    assert run_pass(merge_duplicates, module).count == 0


def test_copies_that_became_one_are_not_written_over(tmp_path):
    """`_unsafe_view` looks at its argument, whatever its schema says: merged copies make it visible."""
    made = recipe("Reshapes", {"x": {"shape": [4, 6], "dtype": "float32"}})
    for device in ("cpu", "npu"):
        aotair.build(made | {"target": {"device": device}}, tmp_path / f"{device}.aotair")  # the build proves it
    halves = {"shape": ["b", 4, "s", 16], "dtype": "float16"}
    inputs = {"query": halves, "key": {"shape": ["b", 4, 8, 16], "dtype": "float16"}}
    made = recipe("Attended", inputs, {"b": [1, 2], "s": [1, 3, 8]}, target={"device": "npu"})
    aotair.build(made, tmp_path / "attended.aotair")
