"""`remove_dead_code`: what nobody uses goes, what has an effect stays."""

import operator

import pytest
import torch
from graphs import assert_same_numbers, run_pass, targets, trace

from aotair.ops import air
from aotair.passes import remove_dead_code

aten = torch.ops.aten


def test_dead_code_goes_and_effects_stay():
    def function(x, y):
        x * 3
        y.copy_(x)
        return (x + 1,)

    module = trace(function, torch.zeros(2), torch.zeros(2))
    module.graph.create_node("call_function", torch.ops.aten.neg.default, (next(iter(module.graph.nodes)),))
    run_pass(remove_dead_code, module)
    assert targets(module) == ["aten.copy_.default", "aten.add.Tensor"]


def graph(*calls):
    """A graph that returns x + 1 and makes other calls before, which are given as (op, arguments behind x)."""
    module = trace(lambda x: (x + 1,), torch.ones(3))
    (x, *_) = module.graph.nodes
    with module.graph.inserting_after(x):
        for op, *rest in reversed(calls):
            module.graph.call_function(op, (x, *rest))
    return module


def test_what_only_the_dead_use_is_dead_too():
    module = assert_same_numbers(remove_dead_code, lambda x: (x + 1,), torch.ones(3))
    (x, *_) = module.graph.nodes
    with module.graph.inserting_before(module.graph.output_node()):
        node = x
        for _ in range(3):
            node = module.graph.call_function(aten.neg.default, (node,))
    assert run_pass(remove_dead_code, module).count == 3
    assert targets(module) == ["aten.add.Tensor"]


@pytest.mark.parametrize(
    "op", [aten._assert_tensor_metadata.default, aten.sym_constrain_range.default, aten._assert_async.default]
)
def test_assertions_go_even_where_they_have_an_effect(op):
    module = graph((op,))
    assert run_pass(remove_dead_code, module).count == 1
    assert targets(module) == ["aten.add.Tensor"]


def test_parts_of_results_that_nobody_takes_go_with_their_op():
    function = lambda x: (x.max(0)[0] + 1,)  # noqa: E731
    module = trace(function, torch.ones(2, 3))
    (largest,) = module.graph.find_nodes(op="call_function", target=aten.max.dim)
    with module.graph.inserting_after(largest):
        module.graph.call_function(operator.getitem, (largest, 1))
    run_pass(remove_dead_code, module)
    numbers = [node.args[1] for node in module.graph.find_nodes(op="call_function", target=operator.getitem)]
    assert numbers == [0] and torch.equal(module(torch.ones(2, 3))[0], torch.full((3,), 2.0))


def test_scopes_and_events_stay_though_nobody_uses_them():
    air.define()
    module = trace(lambda x: (x + 1,), torch.ones(3))
    with module.graph.inserting_before(module.graph.output_node()):
        module.graph.call_function(torch.ops.air.tagged_event_record.default, ("a",))
        module.graph.call_function(torch.ops.air.scope_exit.default)
    assert run_pass(remove_dead_code, module).count == 0 and len(targets(module)) == 3


def test_inputs_that_nobody_uses_stay():
    module = assert_same_numbers(remove_dead_code, lambda x, y: (x + 1,), torch.ones(3), torch.ones(0))
    assert len(module.graph.find_nodes(op="placeholder")) == 2


def test_no_more_goes_than_may():
    module = graph((aten.neg.default,), (aten.abs.default,))
    assert run_pass(remove_dead_code, module, limit=1).count == 1
    assert targets(module) == ["aten.neg.default", "aten.add.Tensor"]
