"""`reinplace_inplaceable_ops`: it fires, it declines for each of its reasons, and no number changes."""

import pytest
import torch
from graphs import assert_same_numbers, reasons, run_pass, targets, trace

from aotair.passes import reinplace_inplaceable_ops

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
