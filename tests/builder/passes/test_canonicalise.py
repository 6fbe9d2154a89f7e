"""`canonicalise`: each call in one way, whichever way it was written."""

import pytest
import torch
from graphs import run_pass, trace

from aotair.passes import canonicalise

aten, air = torch.ops.aten, torch.ops.air
X, CACHE = torch.randn(4, 6), torch.zeros(4, 6)


def test_calls_are_written_in_one_way():
    module = trace(lambda x: (torch.ops.aten.softmax.int(x, 1), x.to(torch.float16)), X)
    cast = next(node for node in module.graph.nodes if node.target is aten._to_copy.default)
    cast.kwargs = {
        "dtype": torch.float16,
        "layout": torch.strided,
        "device": torch.device("cpu"),
        "non_blocking": False,
    }
    soft = next(node for node in module.graph.nodes if "softmax" in str(node.target))
    soft.args, soft.kwargs = (soft.args[0],), {"dim": 1, "half_to_float": False}
    edits = run_pass(canonicalise, module)
    assert cast.kwargs == {"dtype": torch.float16} and soft.args[1:] == (1, False) and not soft.kwargs
    assert edits.count == 2 and run_pass(canonicalise, module).count == 0
    again = run_pass(canonicalise, trace(lambda x: (x.relu().to(torch.float64).sum(1, keepdim=True),), X))
    assert again.count == 0, "what tracing writes is the usual way"


def test_a_device_that_differs_is_kept():
    module = trace(lambda x: (x.to(torch.float16),), X)
    cast = next(node for node in module.graph.nodes if node.target is aten._to_copy.default)
    cast.kwargs = {"dtype": torch.float16, "device": torch.device("meta")}
    assert run_pass(canonicalise, module).count == 0


def _rewritten(function, edit, *inputs):
    """The op of a graph of one, after `edit` wrote it otherwise and the pass wrote it back; with its numbers."""
    module = trace(function, *inputs)
    (node,) = (node for node in module.graph.nodes if node.op == "call_function")
    edit(node)
    edits = run_pass(canonicalise, module)
    assert all(map(torch.equal, module(*inputs), function(*inputs)))
    return node, edits


def _by_name(node):
    node.args, node.kwargs = (node.args[0],), {"other": node.args[1], "alpha": 2}


def _all_by_name(node):
    node.kwargs = {"self": node.args[0], "dim": 1, "start": 0, "end": 2, "step": 1}
    node.args = ()


@pytest.mark.parametrize(
    ("function", "edit", "args", "kwargs"),
    [
        (lambda x: (torch.add(x, x, alpha=2),), _by_name, (None, None), {"alpha": 2}),
        (lambda x: (aten.sum.dim_IntList(x, [-1], True),), lambda n: None, (None, [-1], True), {}),
        (lambda x: (aten.slice.Tensor(x, 1, 0, 2),), _all_by_name, (None, 1, 0, 2), {}),
        (lambda x: (aten.add.Tensor(x, 1),), lambda n: setattr(n, "kwargs", {"alpha": 1}), (None, 1), {}),
    ],
)
def test_a_call_is_written_back_with_the_same_numbers(function, edit, args, kwargs):
    node, edits = _rewritten(function, edit, torch.arange(6.0).view(2, 3))
    given = tuple(None if isinstance(arg, torch.fx.Node) else arg for arg in node.args)
    assert (given, node.kwargs) == (args, kwargs) and edits.count in (0, 1)


def test_a_value_that_equals_a_default_and_is_of_another_type_stays():
    node, edits = _rewritten(lambda x: (x + 1,), lambda n: setattr(n, "kwargs", {"alpha": 1.0}), torch.ones(2))
    assert node.kwargs == {"alpha": 1.0} and edits.count == 0


def test_other_calls_than_of_ops_are_left_and_none_changes_where_none_may():
    module = trace(lambda x: (x.max(0)[0],), torch.ones(2, 2))
    assert run_pass(canonicalise, module).count == 0
    module = trace(lambda x: (x + 1,), torch.ones(2))
    (node,) = module.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    node.kwargs = {"alpha": 1}
    assert run_pass(canonicalise, module, limit=0).count == 0 and node.kwargs == {"alpha": 1}
