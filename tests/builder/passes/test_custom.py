"""A user's own pass: called with what TorchAir gives it, checked, and told what it broke."""

import logging
import operator
from collections import Counter
from dataclasses import replace

import pytest
import torch
from cases import MODELS, RECIPES
from marks import long

import aotair
from aotair.builder import explain
from aotair.errors import GraphError, ModelError, RecipeError
from aotair.passes import composites
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.schema import Origin

aten = torch.ops.aten
LINEAR, ENCODER = RECIPES["linear"], RECIPES["encoder"]


def build(tmp_path, function, where: str = "post_grad_custom_pre_pass"):
    return aotair.build(LINEAR, tmp_path / "x.aotair", **{where: function})


@pytest.mark.parametrize("where", ["post_grad_custom_pre_pass", "post_grad_custom_post_pass"])
def test_a_pass_sees_the_graph_its_fake_inputs_and_the_config(tmp_path, where):
    seen = []

    def look(gm, example_inputs, config):
        seen.append((type(gm).__name__, len(example_inputs), config.debug.aclgraph.clone_input))
        assert all(isinstance(value, torch.Tensor) for value in example_inputs)
        assert [n.op for n in gm.graph.nodes].count("placeholder") == len(example_inputs)
        return "ignored"

    build(tmp_path, look, where)
    assert seen == [("GraphModule", 3, True)]


def test_a_pass_changes_what_is_built(tmp_path):
    """Twice the negative is the same number: the build proves that, and the program shows it."""

    def negate_twice(gm, example_inputs, config):
        (output,) = gm.graph.output_node().args[0]
        with gm.graph.inserting_before(gm.graph.output_node()):
            once = gm.graph.call_function(aten.neg.default, (output,))
            twice = gm.graph.call_function(aten.neg.default, (once,))
        gm.graph.output_node().args = ((twice,),)

    from aotair_runtime.artifact.open import read_program

    names = [op.name for op in read_program(build(tmp_path, negate_twice)).ops]
    assert any("neg" in name for name in names)


def test_what_a_pass_added_is_told_in_the_graphs_order(tmp_path):
    """Sixteen ops in a row: by chance they would not come in order."""
    names = [aten.neg, aten.abs, aten.relu, aten.sigmoid, aten.tanh, aten.cos, aten.sin, aten.exp] * 2

    def row(gm, example_inputs, config):
        (output,) = gm.graph.output_node().args[0]
        with gm.graph.inserting_before(gm.graph.output_node()):
            for op in names:
                output = gm.graph.call_function(op.default, (output,))
        gm.graph.output_node().args = ((output,),)

    data = {**LINEAR, "config": {"post_grad_custom_pre_pass": row}}
    told = explain(data).as_dict("post_grad_custom_pre_pass")["post_grad_custom_pre_pass"]["fused"]
    assert [one["op"] for one in told] == [f"{op.default}" for op in names]


def _before_the_end(gm, make):
    """Return instead of the output what `make` makes of it."""
    end = gm.graph.output_node()
    (output,) = end.args[0]
    with gm.graph.inserting_before(end):
        end.args = ((make(lambda op, *args, **kwargs: gm.graph.call_function(op, args, kwargs), output),),)


def _copy_by_name(call, output):
    return call(aten.clone.default, self=call(aten._to_copy.default, self=output, dtype=torch.float32))


def _write_by_name(call, output):
    same = call(aten.neg.default, self=call(aten.neg.default, output))
    return call(aten.copy_.default, call(aten.neg.default, output), src=same)


def _view_by_name(call, output):
    """What a view by name looks at is not overwritten before it is read."""
    negative = call(aten.neg.default, output)
    view = call(aten.alias.default, self=negative)
    zero = call(aten.add.Tensor, call(aten.neg.default, negative), other=view)
    return call(aten.add.Tensor, zero, output)


def _scope_by_name(call, output):
    call(torch.ops.air.scope_enter.default, keys=["_user_stream_label"], values=["a"])
    same = call(aten.neg.default, call(aten.neg.default, output))
    call(torch.ops.air.scope_exit.default)
    return same


def _last_result(call, output):
    largest = call(operator.getitem, call(aten.max.dim, output, -1, True), -2)
    return call(aten.add.Tensor, call(aten.sub.Tensor, largest, largest), output)


@pytest.mark.parametrize("where", ["post_grad_custom_pre_pass", "post_grad_custom_post_pass"])
@pytest.mark.parametrize("make", [_copy_by_name, _write_by_name, _view_by_name, _scope_by_name, _last_result])
def test_a_pass_may_give_arguments_by_name_and_count_results_from_the_end(tmp_path, where, make):
    build(tmp_path, lambda gm, example_inputs, config: _before_the_end(gm, make), where)


def test_a_pass_that_changes_numbers_is_found_by_the_proof(tmp_path):
    def wrong(gm, example_inputs, config):
        for node in gm.graph.nodes:
            if node.target is aten.linear.default:
                with gm.graph.inserting_after(node):
                    other = gm.graph.call_function(aten.mul.Tensor, (node, 2))
                node.replace_all_uses_with(other)
                other.args = (node, 2)

    with pytest.raises(aotair.AotairError, match="not the original model's"):
        build(tmp_path, wrong)


def _raises(gm, example_inputs, config):
    raise ValueError("no such pattern")


def _impossible(gm, example_inputs, config):
    (output,) = gm.graph.output_node().args[0]
    with gm.graph.inserting_before(gm.graph.output_node()):
        gm.graph.output_node().args = ((gm.graph.call_function(aten.view.default, (output, [7, 7])),),)


def _other_shape(gm, example_inputs, config):
    (output,) = gm.graph.output_node().args[0]
    with gm.graph.inserting_before(gm.graph.output_node()):
        gm.graph.output_node().args = ((gm.graph.call_function(aten.sum.default, (output,)),),)


def _wrong_order(gm, example_inputs, config):
    first = next(n for n in gm.graph.nodes if n.op == "call_function")
    (output,) = gm.graph.output_node().args[0]
    with gm.graph.inserting_before(first):
        made = gm.graph.call_function(aten.neg.default, (output,))
    gm.graph.output_node().args = ((made,),)


def _another_input(gm, example_inputs, config):
    first = next(iter(gm.graph.nodes))
    with gm.graph.inserting_before(first):
        gm.graph.placeholder("more")


def _a_constant(gm, example_inputs, config):
    gm.extra = torch.ones(3)
    (output,) = gm.graph.output_node().args[0]
    with gm.graph.inserting_before(gm.graph.output_node()):
        constant = gm.graph.get_attr("extra")
        gm.graph.output_node().args = ((gm.graph.call_function(aten.add.Tensor, (output, constant)),),)


def _another_output(gm, example_inputs, config):
    (output,) = gm.graph.output_node().args[0]
    gm.graph.output_node().args = ((output, output),)


def _a_list(gm, example_inputs, config):
    gm.graph.output_node().args = ([gm.graph.output_node().args[0]],)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_raises, "raised ValueError: no such pattern"),
        (_impossible, "left a call that cannot be made"),
        (_other_shape, "changed the output 0"),
        (_wrong_order, "left a broken graph"),
        (_another_input, "added or removed inputs"),
        (_a_constant, "left a get_attr node"),
        (_another_output, "changed the number of outputs"),
        (_a_list, "no flat tuple of nodes"),
    ],
)
def test_what_a_pass_broke_is_said(tmp_path, function, says):
    with pytest.raises(GraphError) as caught:
        build(tmp_path, function)
    assert says in str(caught.value)
    assert f"post_grad_custom_pre_pass ({__name__}:{function.__name__})" in str(caught.value)
    assert not (tmp_path / "x.aotair").exists()


def test_a_pass_is_named_in_the_recipe(tmp_path):
    recipe = RECIPES["streams"] | {"config": {"post_grad_custom_post_pass": f"{MODELS}:two_streams"}}
    aotair.build(recipe, tmp_path / "x.aotair")
    with pytest.raises(ModelError, match=r"config\.post_grad_custom_pre_pass: cannot import"):
        aotair.build(LINEAR | {"config": {"post_grad_custom_pre_pass": "nowhere:f"}}, tmp_path / "y.aotair")
    with pytest.raises(RecipeError, match="expected module:function"):
        aotair.build(LINEAR | {"config": {"post_grad_custom_pre_pass": 3}}, tmp_path / "y.aotair")


def called(graph) -> Counter:
    return Counter(str(node.target) for node in graph.nodes if node.op == "call_function")


def program(tmp_path, data, **options):
    return read_program(aotair.build(data, tmp_path / "x.aotair", **options))


def ops_of(built) -> set[str]:
    """What is called, whether in place, into an out argument, or neither."""
    return {op.name.partition("::")[2].partition(".")[0].rstrip("_") for op in built.ops}


@pytest.mark.parametrize(
    ("when", "data"),
    [("pre", LINEAR), ("post", LINEAR), ("pre", ENCODER), long("post", ENCODER)],
    ids=["pre linear", "post linear", "pre encoder", "post encoder"],
)
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


@pytest.mark.long
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
