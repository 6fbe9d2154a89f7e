"""Which composites the code of a pass names: by op, by text, and in what the code takes from around it."""

import functools

import pytest
import torch
from torch.nn import functional

from aotair.passes.spoken import ops_named

aten = torch.ops.aten
LINEAR, NORM = aten.linear.default, aten.layer_norm.default
HELD, HELD_IN_A_TABLE = aten.linear.default, {"layers": [aten.linear]}
TEXT = "aten::linear"


def _by_op(gm, example_inputs, config):
    return gm.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)


def _by_packet(gm, example_inputs, config):
    return [node for node in gm.graph.nodes if node.target == aten.linear]


def _by_text(gm, example_inputs, config):
    return [node for node in gm.graph.nodes if str(node.target) == "aten.linear.default"]


def _by_schema(gm, example_inputs, config):
    return [node for node in gm.graph.nodes if node.target._schema.name == "aten::linear"]


def _by_word(gm, example_inputs, config):
    return [node for node in gm.graph.nodes if node.target.__name__ == "linear"]


def _by_a_global(gm, example_inputs, config):
    return gm.graph.find_nodes(op="call_function", target=HELD)


def _by_a_table(gm, example_inputs, config):
    return [node for node in gm.graph.nodes if node.target in HELD_IN_A_TABLE["layers"]]


def _by_a_text_that_is_held(gm, example_inputs, config):
    return [node for node in gm.graph.nodes if node.target._schema.name == TEXT]


def _by_a_default(gm, example_inputs, config, target=HELD):
    return gm.graph.find_nodes(op="call_function", target=target)


def _by_a_function_that_it_calls(gm, example_inputs, config):
    return _by_op(gm, example_inputs, config)


def _inside_itself(gm, example_inputs, config):
    def inner(node):
        return node.target is torch.ops.aten.linear.default

    return list(filter(inner, gm.graph.nodes))


def _of_itself(gm, example_inputs, config):
    """Calls itself: its code is read once."""
    return _of_itself(gm, HELD, config)


def _around(target):
    return lambda gm, example_inputs, config: gm.graph.find_nodes(op="call_function", target=target)


def _takes_a_target(target, gm, example_inputs, config):
    return gm.graph.find_nodes(op="call_function", target=target)


class _Holds:
    """An object of a user's own that is a pass, or has one."""

    def __init__(self, target):
        self.target = target

    def __call__(self, gm, example_inputs, config):
        return gm.graph.find_nodes(op="call_function", target=self.target)

    def method(self, gm, example_inputs, config):
        return gm.graph.nodes


class _Speaks:
    def __call__(self, gm, example_inputs, config):
        return gm.graph.find_nodes(op="call_function", target=aten.linear.default)


class _Slots:
    __slots__ = ()

    def __call__(self, gm, example_inputs, config):
        return gm.graph.find_nodes(op="call_function", target=aten.linear.default)


@pytest.mark.parametrize(
    "function",
    [
        _by_op,
        _by_packet,
        _by_text,
        _by_schema,
        _by_word,
        _by_a_global,
        _by_a_table,
        _by_a_text_that_is_held,
        _by_a_default,
        _by_a_function_that_it_calls,
        _inside_itself,
        _of_itself,
        _around(LINEAR),
        _around((LINEAR,)),
        _around({LINEAR: 1}),
        _around({"linears": LINEAR}),
        _around(frozenset({aten.linear})),
        functools.partial(_takes_a_target, LINEAR),
        functools.partial(_takes_a_target, target=LINEAR),
        functools.partial(_by_op),
        _Holds(LINEAR),
        _Holds(LINEAR).method,
        _Holds([LINEAR]),
        _Speaks(),
        _Slots(),
    ],
)
def test_a_composite_is_found_however_it_is_named(function):
    assert ops_named(function) == {LINEAR}


def _other_ops(gm, example_inputs, config):
    return gm.graph.find_nodes(op="call_function", target=torch.ops.aten.addmm.default)


def _longer_words(gm, example_inputs, config):
    return [node.name for node in gm.graph.nodes if node.name in ("linear_1", "bilinear", "a linear layer")]


def _calls_torch(gm, example_inputs, config):
    """What torch's own functions say is not what the pass says."""
    return functional.relu(example_inputs[0]), torch.nn.Module


@pytest.mark.parametrize(
    "function",
    [_other_ops, _longer_words, _calls_torch, functional.relu, len, None, 3, _Holds(None), _around(functional)],
)
def test_what_is_not_named_is_not_found(function):
    assert ops_named(function) == set()


def test_several_are_found_together():
    both = lambda gm, example_inputs, config: (aten.linear.default, "aten.layer_norm")  # noqa: E731
    assert ops_named(both) == {LINEAR, NORM}
    every = ("aten::linear", "aten::layer_norm", "aten::rms_norm", "aten::group_norm")
    assert {op._schema.name for op in ops_named(_around(every))} == set(every)


def test_a_name_that_has_no_value_yet_is_passed_over():
    def function(gm, example_inputs, config):
        return later, LINEAR

    assert ops_named(function) == {LINEAR}
    later = NORM
    assert ops_named(function) == {LINEAR, later}


def _chain(length: int):
    """A function that calls a function that … names a composite."""
    function = _around(LINEAR)
    for _ in range(length):
        function = (lambda inner: lambda gm, example_inputs, config: inner(gm, example_inputs, config))(function)
    return function


def test_functions_are_followed_some_steps_and_no_further():
    assert ops_named(_chain(3)) == {LINEAR}
    assert ops_named(_chain(4)) == set(), "a pass that hides it deeper is shown what TorchAir shows"
