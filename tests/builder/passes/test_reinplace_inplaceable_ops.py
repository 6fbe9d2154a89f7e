"""`reinplace_inplaceable_ops`: it fires, it declines for each of its reasons, and no number changes."""

import aotairtest
import pytest
import torch
from graphs import assert_same_numbers, reasons, run_pass, targets, trace

from aotair.passes import reinplace_inplaceable_ops, streams

X = torch.arange(12.0).view(3, 4) / 7 + 0.1
SQUARE = torch.arange(16.0).view(4, 4) / 9 + 0.1


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


# ---- ops with several results ----------------------------------------------------------------------------------------

several = aotairtest.ops
forms = aotairtest.forms
forms = aotairtest.forms


def _two_intermediates(x, y):
    rstd, first, second = several.norm_functional(x + 1, y * 2, 0.5)
    return rstd, first.softmax(-1), second.sum(0)


def _caches_of_intermediates(x, y):
    first, second, keys, values = several.rope_functional(x, x + 1, y * 2)
    return first + second, keys.softmax(-1), values.sum(0)


@pytest.mark.parametrize(
    ("function", "op"), [(_two_intermediates, "norm"), (_caches_of_intermediates, "rope")], ids=["one kept", "two kept"]
)
@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (0, 4)])
def test_new_values_of_intermediates_are_written_over_the_old(function, op, shape):
    x = torch.arange(float(shape[0] * shape[1])).view(shape)
    module = assert_same_numbers(reinplace_inplaceable_ops, function, x, x + 3)
    assert f"aotairtest.{op}.default" in targets(module)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x, y: several.norm_functional(x, y * 2, 0.5), "x_1 is an input, a parameter, or looks at one"),
        (lambda x, y: (*several.norm_functional(t := x + 1, y * 2, 0.5), t.sum()), "add, or what shares its memory"),
        (lambda x, y: several.norm_functional(t := x + 1, t, 0.5), "another argument shares the memory of add"),
        (lambda x, y: several.norm_functional((x[:1] + 1).expand(3, 4), y * 2, 0.5), "elements of expand share memory"),
    ],
)
def test_new_values_stay_apart_and_the_reason_is_said(function, why):
    module = assert_same_numbers(reinplace_inplaceable_ops, function, X, X + 3)
    assert "aotairtest.norm_functional.default" in targets(module)
    accounts = run_pass(reinplace_inplaceable_ops, trace(function, X, X + 3)).accounts
    assert any(why in account.text for account in accounts if account.op.startswith("aotairtest"))


def test_a_chain_of_several_results_and_one():
    """What was written in place by the first is the first argument of the next."""

    def function(x, y):
        _, first, second = several.norm_functional(x + 1, y * 2, 0.5)
        return first.relu(), second.add(1)

    module = assert_same_numbers(reinplace_inplaceable_ops, function, X, X + 3)
    assert {"aotairtest.norm.default", "aten.relu_.default", "aten.add_.Tensor"} <= set(targets(module))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32])
@pytest.mark.parametrize("shape", [(3, 4), (1,), (0, 4)])
def test_dtypes_and_sizes(dtype, shape):
    x = torch.ones(shape).to(dtype)
    module = assert_same_numbers(reinplace_inplaceable_ops, lambda x: ((x * 2).add(1).neg(),), x)
    assert targets(module) == ["aten.mul.Tensor", "aten.add_.Tensor", "aten.neg_.default"]


def test_a_graph_of_several_streams_is_left_alone(caplog):
    def function(x):
        torch.ops.air.scope_enter(["_user_stream_label"], ["side"])
        y = x * 2
        torch.ops.air.scope_exit()
        return (y.add(1),)

    module = trace(function, X)
    run_pass(streams, module)
    with caplog.at_level("INFO", logger="aotair"):
        assert run_pass(reinplace_inplaceable_ops, module).count == 0
    assert "reinplace_inplaceable_ops: skipped, because the graph has several streams" in caplog.text


def test_a_new_value_that_is_used_again_later_is_not_written_over():
    def function(x, y):
        _, first, second = several.norm_functional(x + 1, y * 2, 0.5)
        return first.relu(), first.sum(0), second.relu()

    module = assert_same_numbers(reinplace_inplaceable_ops, function, X, X + 3)
    assert targets(module).count("aten.relu.default") == targets(module).count("aten.relu_.default") == 1


def _written_over(function, *inputs: torch.Tensor) -> str:
    """What the only sum of a function writes over."""
    module = assert_same_numbers(reinplace_inplaceable_ops, function, *inputs)
    (found,) = [node for node in module.graph.nodes if "add" in str(node.target)]
    return found.args[0].name if str(found.target) == "aten.add_.Tensor" else ""


def test_a_sum_writes_over_what_was_made_last():
    assert _written_over(lambda x: (x.exp() + x.cos(),), X) == "cos"
    assert _written_over(lambda x: (x.cos().add(x.exp()),), X) == "exp"
    assert _written_over(lambda x: (x + x.cos(),), X) == "cos"
    # Not where that is used later, is of another shape, a view of the same, or scaled in the sum.
    assert _written_over(lambda x: (x.exp().add(y := x.cos()), y), X) == "exp"
    assert _written_over(lambda x: (x.exp() + x[0].cos(),), X) == "exp"
    assert _written_over(lambda x: (torch.add(x.exp(), x.cos(), alpha=2),), X) == "exp"
    assert _written_over(lambda x: (x.exp() + x.half().cos(),), X) == "exp"
    assert _written_over(lambda x: ((y := x.exp()).add(y),), X) == ""
