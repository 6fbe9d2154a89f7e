"""What a user's pass may call: ops by name and packet, functions and methods become ops; what cannot is refused."""

import operator
import re

import pytest
import torch
from graphs import answers, targets, trace

from aotair.errors import GraphError
from aotair.ops import air
from aotair.passes.calls import by_position, resolve_calls

aten = torch.ops.aten
air.define()
X = torch.arange(12.0).view(3, 4) / 5 - 1


def returning(make):
    """A graph of one input that returns what `make` makes of it with `call(target, …)`; new nodes have no values."""
    module = trace(lambda x: (x * 1,), X)
    graph, output = module.graph, module.graph.output_node()
    (result,) = output.args[0]
    with graph.inserting_before(output):
        made = make(graph, result)
    output.args = (tuple(made) if isinstance(made, (tuple, list)) else (made,),)
    return module


def call(graph, target, *args, **kwargs):
    if isinstance(target, str):
        return graph.call_method(target, args, kwargs)
    return graph.call_function(target, args, kwargs)


def resolved(make):
    module = returning(make)
    resolve_calls(module.graph, "mine")
    module.graph.lint()
    module.recompile()
    return module


# ---- arguments by name -----------------------------------------------------------------------------------------------


def _named(target, *args, **kwargs):
    module = returning(lambda graph, x: call(graph, target, *[x if arg is X else arg for arg in args], **kwargs))
    return module, next(node for node in module.graph.nodes if node.target is target)


def test_arguments_by_name_stand_by_position():
    module, node = _named(aten.sum.dim_IntList, X, keepdim=True, dim=[1])
    by_position(module.graph)
    assert node.args[1:] == ([1], True) and node.kwargs == {}
    module.recompile()
    assert torch.equal(module(X)[0], X.sum(1, keepdim=True))


def test_arguments_that_have_no_position_keep_their_names():
    module, node = _named(aten.add.Tensor, X, other=2, alpha=3)
    by_position(module.graph)
    assert node.args[1:] == (2,) and node.kwargs == {"alpha": 3}


def test_arguments_behind_one_that_is_not_given_keep_their_names():
    module, node = _named(aten.slice.Tensor, X, end=2)
    by_position(module.graph)
    assert len(node.args) == 1 and node.kwargs == {"end": 2}


def test_calls_of_what_has_no_schema_are_left():
    module, node = _named(torch.sum, X, dim=1)
    by_position(module.graph)
    assert len(node.args) == 1 and node.kwargs == {"dim": 1}


# ---- what is called --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "want", "ops"),
    [
        (lambda g, x: call(g, aten.relu.default, x), X.relu(), ["aten.relu.default"]),
        (lambda g, x: call(g, aten.relu, x), X.relu(), ["aten.relu.default"]),
        (lambda g, x: call(g, aten.add, x, 1), X + 1, ["aten.add.Tensor"]),
        (lambda g, x: call(g, torch.relu, x), X.relu(), ["aten.relu.default"]),
        (lambda g, x: call(g, torch.nn.functional.relu, x), X.relu(), ["aten.relu.default"]),
        (lambda g, x: call(g, operator.add, x, x), X + X, ["aten.add.Tensor"]),
        (lambda g, x: call(g, "relu", x), X.relu(), ["aten.relu.default"]),
        (lambda g, x: call(g, "sum", x, dim=1, keepdim=True), X.sum(1, keepdim=True), ["aten.sum.dim_IntList"]),
        (lambda g, x: call(g, operator.getitem, x, 1), X[1], ["aten.select.int"]),
        (lambda g, x: call(g, torch.mul, call(g, torch.neg, x), x), -X * X, ["aten.neg.default", "aten.mul.Tensor"]),
        (lambda g, x: call(g, lambda t: (t + 1) * 2, x), (X + 1) * 2, ["aten.add.Tensor", "aten.mul.Tensor"]),
        (lambda g, x: call(g, lambda t: t, x), X, []),
        (lambda g, x: call(g, torch.cat, [x, x], 1), torch.cat([X, X], 1), ["aten.cat.default"]),
        (lambda g, x: call(g, "t", x), X.t(), ["aten.t.default"]),
        (lambda g, x: call(g, "double", x), X.double(), ["aten._to_copy.default"]),
        (lambda g, x: call(g, torch.sum, call(g, "narrow", x, 0, 0, 0)), torch.tensor(0.0), None),
    ],
)
def test_whatever_is_called_becomes_its_ops(make, want, ops):
    module = resolved(make)
    assert torch.equal(answers(module, (X,))[0], want)
    assert ops is None or targets(module)[1:] == ops
    (result,) = module.graph.output_node().args[0]
    value = result.meta["val"]
    assert (value.shape, value.dtype, value.stride()) == (want.shape, want.dtype, want.stride())


def test_each_of_several_results_goes_to_its_users():
    def make(graph, x):
        split = call(graph, torch.split, x, 2, 1)
        return call(graph, operator.getitem, split, 1), call(graph, operator.getitem, split, -2)

    module = resolved(make)
    right, left = answers(module, (X,))[:2]
    assert torch.equal(right, X[:, 2:]) and torch.equal(left, X[:, :2])


def test_results_are_counted_from_the_front():
    def make(graph, x):
        return call(graph, operator.getitem, call(graph, aten.max.dim, x, 1), -1)

    module = resolved(make)
    assert torch.equal(module(X)[0], X.max(1)[1])
    assert [node.args[1] for node in module.graph.nodes if node.target is operator.getitem] == [1]


def test_a_function_that_returns_nothing_and_that_nobody_uses_goes():
    module = resolved(lambda graph, x: (call(graph, lambda t: None, x), x)[1:])
    assert targets(module) == ["aten.mul.Tensor"]


def test_a_function_that_writes_writes():
    def write(t):
        t.add_(1)

    module = resolved(lambda graph, x: (call(graph, write, x), x)[1:])
    assert "aten.add_.Tensor" in targets(module) and torch.equal(module(X)[0], X + 1)


def test_functions_of_sizes_stay_what_they_are():
    def make(graph, x):
        rows = call(graph, aten.sym_size.int, x, 0)
        return call(graph, aten.view.default, x, [call(graph, operator.mul, rows, 4)])

    module = resolved(make)
    assert "<built-in function mul>" in targets(module) and torch.equal(module(X)[0], X.flatten())


def test_events_that_have_numbers_are_passed_over():
    module = returning(lambda graph, x: call(graph, aten.neg.default, x))
    with module.graph.inserting_before(module.graph.output_node()):
        event = module.graph.call_function(torch.ops.air.tagged_event_record.default, ("a",))
    event.meta["event"] = 0
    resolve_calls(module.graph, "mine")
    assert "val" not in event.meta and not event._erased


# ---- what is refused -------------------------------------------------------------------------------------------------


def _raises(t):
    raise ValueError


def _as_a_whole(graph, x):
    return call(graph, "sum", call(graph, operator.getitem, call(graph, lambda t: [t, 3], x), 1))


HELD = torch.ones(4)


@pytest.mark.parametrize(
    ("make", "name", "got"),
    [
        (lambda g, x: call(g, aten.view.default, x, [5]), None, "RuntimeError: shape '\\[5\\]' is invalid"),
        (lambda g, x: call(g, _raises, x), "_raises", "ValueError: "),
        (lambda g, x: call(g, "nothing", x), "nothing", "AttributeError: .*nothing"),
        (lambda g, x: call(g, lambda t: t + HELD, x), "<lambda>", "it holds a tensor of its own|FakeTensor"),
        (lambda g, x: call(g, "neg", call(g, torch.split, x, 2)), "split", "its results are used as a whole"),
        (_as_a_whole, "<lambda>", "its results are used as a whole"),
        (lambda g, x: call(g, "neg", call(g, lambda t: 3.5, x)), "<lambda>", "it returns 3.5"),
        (lambda g, x: call(g, "neg", call(g, lambda t: None, x)), "<lambda>", "it returns None"),
        (lambda g, x: call(g, "neg", call(g, "tolist", x)), "tolist", "."),
    ],
)
def test_what_cannot_be_ops_is_refused_by_name(make, name, got):
    with pytest.raises(GraphError) as caught:
        resolved(make)
    error = caught.value
    if name is None:
        assert error.what.startswith("the pass mine left a call that cannot be made: view")
    else:
        assert error.what.startswith(f"the pass mine calls {name} at ")
        assert error.what.endswith(", which cannot be traced to ops")
        assert error.expected == "overloads of ops, or functions that call ops"
        assert error.fix == "write the ops that it calls, as torch.ops.aten.relu.default"

    assert re.search(got, error.got), error.got
