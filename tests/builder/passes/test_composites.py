"""Composites as TorchAir shows them: apart while a user's pass or rule looks, whole again where nobody changed them."""

from collections import Counter

import pytest
import torch
from graphs import answers
from torch._functorch.aot_autograd import aot_module_simplified
from torch.nn import functional as F

from aotair.fusion import matcher
from aotair.graph.show import show
from aotair.passes import composites

aten, air = torch.ops.aten, torch.ops.air


def r(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


CALLS = {
    "rows": (F.linear, r(5, 4), r(3, 4), r(3)),
    "rows, no bias": (F.linear, r(5, 4), r(3, 4)),
    "a vector": (F.linear, r(4), r(3, 4), r(3)),
    "three dimensions": (F.linear, r(2, 5, 4), r(3, 4), r(3)),
    "three, no bias": (F.linear, r(2, 5, 4), r(3, 4)),
    "four dimensions": (F.linear, r(2, 2, 5, 4), r(3, 4), r(3)),
    "turned": (lambda x, w, b: F.linear(x.transpose(0, 1), w, b), r(2, 5, 4), r(3, 4), r(3)),
    "turned, no bias": (lambda x, w: F.linear(x.transpose(0, 1), w), r(2, 5, 4), r(3, 4)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), r(2, 5, 4), r(4), r(4)),
    "plain layer norm": (lambda x: F.layer_norm(x, (5, 4), eps=1e-3), r(2, 5, 4)),
    "rms norm": (lambda x, w: F.rms_norm(x, (4,), w), r(2, 5, 4), r(4)),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), r(2, 4, 3, 3), r(4), r(4)),
    "turned group norm": (lambda x, w, b: F.group_norm(x.transpose(1, 2), 2, w, b), r(2, 3, 4), r(4), r(4)),
    "in a row": (lambda x, w: F.linear(F.layer_norm(F.linear(x, w), (4,)), w), r(2, 5, 4), r(4, 4)),
}


def traced(function, inputs):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(value) for value in inputs]
    return matcher.fwd_only(lambda *args: (function(*args),), fakes, run_functional_passes=False)


def called(graph) -> Counter:
    return Counter(str(node.target) for node in graph.nodes if node.op == "call_function")


@pytest.mark.parametrize("name", CALLS)
def test_apart_they_are_what_torch_compile_shows(name):
    function, *inputs = CALLS[name]
    shown = []

    def compiler(gm, example_inputs):
        shown.append(called(gm.graph))
        return gm.forward

    def backend(gm, example_inputs):
        return aot_module_simplified(gm, example_inputs, fw_compiler=compiler)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend, dynamic=False)(*inputs)
    module = traced(function, inputs)
    composites.expand(module.graph)
    assert shown == [called(module.graph)]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_apart_and_together_again(name, plain):
    function, *inputs = CALLS[name]
    module = traced(function, inputs)
    before, want = show(module), answers(module, inputs)
    groups = composites.expand(module.graph, plain=plain)
    module.recompile()
    torch.testing.assert_close(answers(module, inputs), want)
    assert not called(module.graph).keys() & set(map(str, composites.TAKEN_APART))
    assert composites.fold(module.graph, groups) == len(groups) > 0
    assert show(module) == before


def _edit_argument(graph, nodes):
    nodes["addmm"].kwargs = {"beta": 2}


def _edit_target(graph, nodes):
    nodes["addmm"].target = aten._addmm_activation.default


def _use_inside(graph, nodes):
    (output,) = graph.output_node().args[0]
    with graph.inserting_after(output):
        total = graph.call_function(aten.sum.default, (nodes["t"],))
    graph.output_node().args = ((output, total),)


def _take_away(graph, nodes):
    nodes["view_1"].replace_all_uses_with(nodes["addmm"])
    graph.erase_node(nodes["view_1"])


def _divide_by_a_scope(graph, nodes):
    with graph.inserting_before(nodes["bmm"]):
        graph.call_function(air.scope_enter.default, (["_user_stream_label"], ["s"]))
    with graph.inserting_after(nodes["bmm"]):
        graph.call_function(air.scope_exit.default)


def _divide_by_a_write(graph, nodes):
    bias = nodes["add"].args[1]
    with graph.inserting_after(nodes["bmm"]):
        graph.call_function(aten.neg_.default, (bias,)).meta["val"] = bias.meta["val"]


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("three dimensions", _edit_argument),
        ("rows", _edit_target),
        ("rows", _use_inside),
        ("turned", _divide_by_a_scope),
        ("turned", _divide_by_a_write),
        ("three dimensions", _take_away),
    ],
)
def test_what_was_touched_stays_apart(name, edit):
    function, *inputs = CALLS[name]
    module = traced(function, inputs)
    groups = composites.expand(module.graph)
    edit(module.graph, {node.name: node for node in module.graph.nodes})
    module.graph.lint()
    module.recompile()
    before = module.code
    assert composites.fold(module.graph, groups) == 0
    module.recompile()
    assert module.code == before


def test_a_scope_around_a_product_holds_the_composite():
    function, *inputs = CALLS["three dimensions"]
    module = traced(function, inputs)
    graph, groups = module.graph, composites.expand(module.graph)
    product = next(node for node in graph.nodes if node.target is aten.addmm.default)
    with graph.inserting_before(product):
        graph.call_function(air.scope_enter.default, (["_user_stream_label"], ["s"]))
    with graph.inserting_after(product):
        graph.call_function(air.scope_exit.default)
    assert composites.fold(graph, groups) == 1
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert names == ["air.scope_enter.default", "aten.linear.default", "air.scope_exit.default"]
