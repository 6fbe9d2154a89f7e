"""Composites as TorchAir shows them: apart while a user's pass or rule looks, whole again where nobody changed them."""

import logging
from collections import Counter
from dataclasses import replace

import pytest
import torch
from cases import RECIPES
from graphs import answers
from torch._functorch.aot_autograd import aot_module_simplified
from torch._inductor.pattern_matcher import fwd_only
from torch.nn import functional as F

import aotair
from aotair.builder import build_with_summary, explain
from aotair.errors import GraphError
from aotair.fusion import matcher, register
from aotair.graph.show import show
from aotair.passes import composites
from aotair.summary import Listener
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.schema import Origin

aten, air = torch.ops.aten, torch.ops.air
LINEAR, ENCODER = RECIPES["linear"], RECIPES["encoder"]


@pytest.fixture(autouse=True)
def only_here(monkeypatch):
    monkeypatch.setattr(register, "_rules", [])


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


# ---- passes ----------------------------------------------------------------------------------------------------------


def program(tmp_path, data, **options):
    return read_program(aotair.build(data, tmp_path / "x.aotair", **options))


def ops_of(built) -> set[str]:
    """What is called, whether in place, into an out argument, or neither."""
    return {op.name.partition("::")[2].partition(".")[0].rstrip("_") for op in built.ops}


@pytest.mark.parametrize("data", [LINEAR, ENCODER], ids=["linear", "encoder"])
@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_pass_that_changes_nothing_changes_no_byte(tmp_path, data, when):
    plain = replace(program(tmp_path, data), origin=Origin())
    passed = program(tmp_path, data, **{f"post_grad_custom_{when}_pass": lambda gm, example_inputs, config: None})
    assert replace(passed, origin=Origin()) == plain


def _count(gm, example_inputs, config):
    """Twice what a product gives, halved: written on what TorchAir shows."""
    for node in gm.graph.nodes:
        if node.target in (aten.addmm.default, aten.mm.default, aten.native_layer_norm.default):
            result = node
            if node.target is aten.native_layer_norm.default:
                (result,) = node.users
            with gm.graph.inserting_after(result):
                half = gm.graph.call_function(aten.div.Tensor, (result, 2))
            with gm.graph.inserting_after(half):
                whole = gm.graph.call_function(aten.mul.Tensor, (half, 2))
            result.replace_all_uses_with(whole, lambda user, half=half: user is not half)


@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_pass_for_torchair_finds_its_calls(tmp_path, when):
    names = Counter()

    def passes(gm, example_inputs, config):
        names.update(called(gm.graph))
        _count(gm, example_inputs, config)

    built = program(tmp_path, ENCODER, **{f"post_grad_custom_{when}_pass": passes})
    assert names["aten.addmm.default"] and names["aten.native_layer_norm.default"] and names["aten.t.default"]
    assert not names.keys() & set(map(str, composites.TAKEN_APART))
    assert bool(names["aten.view.default"]) is (when == "pre"), "TorchAir's post pass sees reshapes"
    assert bool(names["aten.reshape.default"]) is (when == "post")
    assert {"div", "mul"} <= ops_of(built)


def _on_linear(gm, example_inputs, config):
    _negates(gm, aten.linear.default)


def _by_name(gm, example_inputs, config):
    for node in gm.graph.nodes:
        if str(node.target) == "aten.linear.default":
            _negates(gm, node.target)
            return


class _Object:
    def __init__(self):
        self.target = aten.linear.default

    def __call__(self, gm, example_inputs, config):
        _negates(gm, self.target)


def _negates(gm, target):
    for node in gm.graph.find_nodes(op="call_function", target=target):
        with gm.graph.inserting_after(node):
            once = gm.graph.call_function(torch.neg, (node,))
        with gm.graph.inserting_after(once):
            twice = gm.graph.call_method("neg", (once,))
        node.replace_all_uses_with(twice, lambda user, once=once: user is not once)


@pytest.mark.parametrize("function", [_on_linear, _by_name, _Object()], ids=["op", "text", "object"])
def test_a_pass_for_composites_finds_them_too(tmp_path, function):
    assert "neg" in ops_of(program(tmp_path, LINEAR, post_grad_custom_pre_pass=function))
    apart = LINEAR | {"config": {"experimental_config": {"composites": "apart"}}}
    assert "neg" not in ops_of(program(tmp_path, apart, post_grad_custom_pre_pass=function))


def test_a_pass_for_both_is_told(tmp_path, caplog):
    def mixed(gm, example_inputs, config):
        _negates(gm, aten.gelu.default)
        _negates(gm, aten.linear.default)

    with caplog.at_level(logging.WARNING, logger="aotair"):
        program(tmp_path, ENCODER, post_grad_custom_pre_pass=mixed)
    (text,) = [record.getMessage() for record in caplog.records if record.name == "aotair"]
    assert "names aten.linear.default" in text and "composites: whole" in text
    caplog.clear()
    whole = ENCODER | {"config": {"experimental_config": {"composites": "whole"}}}
    with caplog.at_level(logging.WARNING, logger="aotair"):
        program(tmp_path, whole, post_grad_custom_pre_pass=mixed)
    assert not [record for record in caplog.records if record.name == "aotair"]


def test_a_pass_that_insists_on_composites_is_told(tmp_path):
    def insists(gm, example_inputs, config):
        assert gm.graph.find_nodes(op="call_function", target=aten.linear.default), "no layer"

    with pytest.raises(GraphError, match=r"AssertionError: no layer(.|\n)*composites: whole"):
        program(tmp_path, LINEAR, post_grad_custom_pre_pass=insists)


# ---- rules -----------------------------------------------------------------------------------------------------------


def _product(x, w, b):
    return torch.addmm(b, x, w)


def _sum(x, w, b):
    return torch.mm(x, w) + b


def _layer(x, w, b):
    return F.linear(x, w, b)


def _layer_by_parts(x, w, b):
    return x @ w.T + b


def test_patterns_on_what_torchair_shows_match(tmp_path):
    aotair.register_replacement(_product, _sum, [r(2, 4), r(4, 3), r(3)])
    summary = build_with_summary(LINEAR, tmp_path / "x.aotair", Listener())
    assert summary.rewrites[f"{__name__}._product"] == 1
    assert "1 done, 0 left alone" in explain(LINEAR).text(f"{__name__}._product")
    whole = {"config": {"experimental_config": {"composites": "whole"}}}
    assert f"{__name__}._product" not in build_with_summary(LINEAR | whole, tmp_path / "x.aotair", Listener()).rewrites


@pytest.mark.parametrize("trace_fn", [None, fwd_only], ids=["our tracing", "torch's"])
def test_a_pattern_matches_however_it_was_traced(tmp_path, trace_fn):
    options = {} if trace_fn is None else {"trace_fn": trace_fn}
    aotair.register_replacement(_layer, _layer_by_parts, [r(2, 4), r(3, 4), r(3)], **options)
    summary = build_with_summary(LINEAR, tmp_path / "x.aotair", Listener())
    assert summary.rewrites.get(f"{__name__}._layer") == 1


def test_a_rule_that_fires_nowhere_changes_no_byte(tmp_path):
    plain = replace(program(tmp_path, ENCODER), origin=Origin())
    aotair.register_replacement(lambda x, w: (x @ w).cos(), lambda x, w: (x @ w).cos() * 1, [r(2, 4), r(4, 3)])
    assert replace(program(tmp_path, ENCODER), origin=Origin()) == plain


def test_what_a_rule_needs_and_nothing_calls_is_said(tmp_path):
    cosine = lambda x, w, b: torch.addmm(b, x, w).cos()  # noqa: E731
    aotair.register_replacement(cosine, lambda x, w, b: (x @ w + b).cos(), [r(2, 4), r(4, 3), r(3)])
    (rule,) = register.registered()
    said = explain(ENCODER).text(rule.name)
    assert "no x aten.cos.default at all: the rule needs it, and nothing in the graph calls it" in said
    assert "addmm" not in said, "products are there where linear layers are apart"
