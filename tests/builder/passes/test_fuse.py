"""A rule over a graph: what keeps a match from being replaced, whichever rule it is, and what is said of it."""

import operator

import near
import pytest
import torch
from fusing import ROWS, declines, fires, norm
from graphs import answers, targets, trace

from aotair import fusion
from aotair.errors import GraphError
from aotair.fusion.matcher import KeywordArg, call
from aotair.fusion.rule import Fused, Kept
from aotair.passes import fuse as step
from aotair.passes.edits import Edits
from aotair.target.target import Target

aten, npu = torch.ops.aten, torch.ops.npu


DYNAMIC, FLAT = "add_rms_norm_dynamic_quant", "add_rms_norm_flatten_dynamic_quant"


def test_what_others_use_stays():
    def uses(which):
        def function(x1, x2, gamma):
            y, rstd, x = norm(x1, x2, gamma)
            q, scale = npu.npu_dynamic_quant.default(y)
            return q, scale, {"y": y, "rstd": rstd}[which] * 2, x

        return function

    declines(DYNAMIC, "is also used by mul (aten.mul.Tensor)", uses("y"), *ROWS)
    declines(DYNAMIC, "the result 1 of npu_add_rms_norm is used too", uses("rstd"), *ROWS)


def test_a_result_that_nobody_takes_does_not_hide_a_match():
    from aotair.fusion.matcher import fwd_only
    from aotair.passes import fuse as step

    def function(x1, x2, gamma):
        y, rstd, x = norm(x1, x2, gamma)
        rstd * 2
        return (*npu.npu_dynamic_quant.default(y), x)

    with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in ROWS]
    graph = fwd_only(function, fakes, run_functional_passes=False)
    dead = next(node for node in graph.graph.nodes if node.target is aten.mul.Tensor)
    graph.graph.erase_node(dead)
    assert len(graph.graph.find_nodes(op="call_function", target=operator.getitem)) == 5, "one of them is dead"
    edits = near.edits_of(DYNAMIC)
    step.run(graph, edits, next(rule for rule in fusion.RULES if rule.name == DYNAMIC))
    assert edits.count == 1


def test_streams_and_writes_keep_ops_apart():
    def streams(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        torch.ops.air.scope_enter(["_user_stream_label"], ["side"])
        q, scale = npu.npu_dynamic_quant.default(y)
        torch.ops.air.scope_exit()
        return q, scale, x

    def writes(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        aten.mul_.Tensor(x1, 2)
        return (*npu.npu_dynamic_quant.default(y), x)

    def waits(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        torch.ops.air.tagged_event_wait("tag")
        return (*npu.npu_dynamic_quant.default(y), x)

    def inside(x1, x2, gamma):
        torch.ops.air.scope_enter(["_user_stream_label"], ["side"])
        y, _, x = norm(x1, x2, gamma)
        q, scale = npu.npu_dynamic_quant.default(y)
        torch.ops.air.scope_exit()
        return q, scale, x

    declines(DYNAMIC, "its ops are on different streams", streams, *ROWS)
    declines(DYNAMIC, "something is written, or an event is waited for", writes, *ROWS)
    declines(DYNAMIC, "something is written, or an event is waited for", waits, *ROWS)
    fires(DYNAMIC, "npu_add_rms_norm_dynamic_quant", inside, *ROWS)


def test_an_input_that_comes_too_late():
    def function(x1, x2, gamma):
        y, _, x = norm(x1, x2, gamma)
        return (*npu.npu_dynamic_quant.default(y, smooth_scales=(x * 2)[0, 0]), x)

    declines(DYNAMIC, "is computed after the first of its results", function, *ROWS)


# ---- whatever the rule is: what its replacement may be ---------------------------------------------------------------

X, Y = torch.arange(6.0).view(2, 3) - 2, torch.arange(6.0).view(3, 2).t() + 1
SUM = call(aten.relu.default, call(aten.add.Tensor, KeywordArg("x"), KeywordArg("y")))


def rule(replace, pattern=SUM, check=lambda: None, **options) -> fusion.Rule:
    """relu(x + y) becomes what `replace` gives."""
    return fusion.Rule("mine", "a sum", (Fused(pattern, replace, check),), **options)


def tried(one: fusion.Rule, function=lambda x, y: ((x + y).relu(),), inputs=(X, Y), limit=None, **options):
    """The graph after the rule, what the rule said, and whether the numbers are the function's."""
    module = trace(function, *inputs)
    edits = Edits("mine", Target("cpu"), limit)
    want = answers(module, inputs)
    step.run(module, edits, one, **options)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    same = all(map(torch.equal, answers(module, inputs), want))
    return targets(module), edits, same


def right(x, y):
    return (aten.clamp_min.default(aten.add.Tensor(y, x), 0),)


def test_a_replacement_of_the_same_numbers_is_put_in():
    ops, edits, same = tried(rule(right))
    assert ops == ["aten.add.Tensor", "aten.clamp_min.default"] and same
    assert [(one.rewritten, one.node, one.text) for one in edits.accounts] == [(True, "relu", "fused: a sum")]


def test_every_match_is_replaced_and_no_more_than_may_be():
    function = lambda x, y: ((x + y).relu(), (x + x).relu(), (y + y).relu())  # noqa: E731
    ops, edits, same = tried(rule(right), function)
    assert ops.count("aten.clamp_min.default") == edits.count == 3 and same
    ops, edits, same = tried(rule(right), function, limit=1)
    assert ops.count("aten.clamp_min.default") == edits.count == 1 and same


@pytest.mark.parametrize(
    ("replace", "why"),
    [
        (lambda x, y: (x, y), "the replacement gives 2 results for 1"),
        (lambda x, y: (3.5,), "the replacement gives 3.5 where relu is a tensor"),
        (lambda x, y: ((x + y).relu().double(),), "the replacement gives float64 where relu is float32"),
        (lambda x, y: ((x + y).relu()[0],), "the replacement gives the shape [3] where relu has [2, 3]"),
        (lambda x, y: ((x + y).relu()[:1],), "the replacement gives the shape [1, 3] where relu has [2, 3]"),
        (lambda x, y: (x.add_(y).relu(),), "the replacement writes into its argument "),
        (lambda x, y: ((x - y).relu(),), "on random numbers relu differs by "),
    ],
)
def test_a_replacement_that_is_none_is_left_out_and_the_reason_is_said(replace, why):
    ops, edits, same = tried(rule(replace))
    assert ops == ["aten.add.Tensor", "aten.relu.default"] and same
    (account,) = edits.accounts
    assert not account.rewritten and account.text.startswith(why), account.text


def test_what_a_check_says_is_the_reason():
    ops, edits, same = tried(rule(right, check=lambda: "it is Sunday"))
    assert ops == ["aten.add.Tensor", "aten.relu.default"] and same
    assert [one.text for one in edits.accounts] == ["it is Sunday"]


def test_a_users_rule_that_changes_numbers_is_refused_unless_nobody_asks():
    wrong = rule(lambda x, y: ((x - y).relu(),), ours=False)
    with pytest.raises(GraphError, match="the fusion rule mine changes numbers, or cannot be checked") as caught:
        tried(wrong)
    assert caught.value.got.startswith("on random numbers relu differs by ")
    assert "disabled_fusion_rules: [mine]" in caught.value.fix and "verify_rules: false" in caught.value.fix
    ops, _, same = tried(wrong, verify=False)
    assert ops == ["aten.sub.Tensor", "aten.relu.default"] and not same


def test_a_users_rule_that_writes_is_refused_whoever_asks():
    writes = rule(lambda x, y: (x.add_(y).relu(),), ours=False)
    with pytest.raises(GraphError, match="the fusion rule mine changes numbers") as caught:
        tried(writes, verify=False)
    assert caught.value.got.startswith("the replacement writes into its argument ")


def test_results_of_other_strides_are_laid_anew():
    """A view of the result that these strides do not allow looks at a copy."""
    turned = rule(lambda x, y: ((x + y).relu().t().contiguous().t(),))
    ops, edits, same = tried(turned, lambda x, y: ((x + y).relu().view(6) * 2,), (X, Y.contiguous()))
    assert edits.count == 1 and same and "aten.view.default" in ops


def test_a_replacement_has_the_line_of_what_it_stands_for():
    module = trace(lambda x, y: ((x + y).relu(),), X, Y)
    for node in module.graph.nodes:
        node.meta["stack_trace"] = 'File "model.py", line 7, in forward'
    step.run(module, Edits("mine", Target("cpu")), rule(right))
    assert {node.meta.get("stack_trace") for node in module.graph.nodes} == {'File "model.py", line 7, in forward'}


# ---- what lies around a match ----------------------------------------------------------------------------------------


def _named_argument(x, y):
    return (aten.add.Tensor(x, y, alpha=2).relu(),)


def _used_elsewhere(x, y):
    total = x + y
    return total.relu(), total * 2


def _result_is_written(x, y):
    result = (x + y).relu()
    result.mul_(2)
    return (result + 1,)


def _written_in_between(x, y):
    total = x + y
    x.mul_(2)
    return (total.relu(),)


def _on_another_stream(x, y):
    total = x + y
    torch.ops.air.scope_enter(["_user_stream_label"], ["side"])
    result = total.relu()
    torch.ops.air.scope_exit()
    return (result,)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_named_argument, "add (aten.add.Tensor) has alpha=2, which the rule does not take"),
        (_used_elsewhere, "add is also used by mul (aten.mul.Tensor)"),
        (_result_is_written, "the memory of relu is written elsewhere"),
        (_written_in_between, "between its ops something is written, or an event is waited for"),
        (_on_another_stream, "its ops are on different streams"),
    ],
)
def test_what_lies_around_a_match_keeps_it(function, why):
    _, edits, same = tried(rule(right), function)
    (account,) = edits.accounts
    assert same and edits.count == 0 and account.text.startswith(why), account.text


def test_a_near_miss_is_explained_and_others_are_not_spoken_of():
    pattern = call(aten.relu.default, call(aten.add.Tensor, call(aten.exp.default, KeywordArg("x")), KeywordArg("y")))
    one = rule(lambda x, y: (torch.relu(y + x.exp()),), pattern)
    _, edits, _ = tried(one, lambda x, y: ((x.sin() + y).relu(), (x - y).relu(), x.cos()))
    (account,) = edits.accounts
    assert account.text == "sin (aten.sin.default) stands where the rule needs aten.exp.default"


# ---- what a rule needs -----------------------------------------------------------------------------------------------


def test_what_nothing_calls_is_said_once_all_was_seen():
    module = trace(lambda x, y: ((x - y).relu(),), X, Y)
    seen, edits = set(), Edits("mine", Target("cpu"))
    step.run(module, edits, rule(right), seen=seen)
    assert seen == {aten.sub.Tensor, aten.relu.default}
    missing = [one for one in edits.accounts if not one.node]
    assert [(one.op, one.text) for one in missing] == [
        ("aten.add.Tensor", "the rule needs it, and nothing in the graph calls it")
    ]
    edits = Edits("mine", Target("cpu"))
    step.run(module, edits, rule(right), seen={aten.add.Tensor})
    assert not [one for one in edits.accounts if not one.node], "another graph called it"


def test_a_rule_that_needs_no_call_of_a_composite_waits_until_these_are_whole():
    module = trace(lambda x, y: ((x + y).relu(),), X, Y)
    edits = Edits("mine", Target("cpu"))
    step.run(module, edits, rule(right), seen=set(), groups=[])
    assert edits.count == 0 and edits.accounts == []


def test_other_rules_leave_what_a_users_check_kept():
    module = trace(lambda x, y: ((x + y).relu(),), X, Y)
    said = []
    for one in (rule(right, check=lambda: Kept("no"), ours=False), rule(right)):
        edits = Edits(one.name, Target("cpu"))
        step.run(module, edits, one)
        said += [account.text for account in edits.accounts]
    assert said == ["no", "the extra_check of mine says no to fusing these ops here"]
