"""The passes that leave out what computes nothing and what nobody reads; and all of them, run twice."""

import torch
from exports import exported
from graphs import run_pass, targets, trace

from aotair.graph.show import show
from aotair.passes import pipeline, remove_dead_code, remove_noop_ops
from aotair.passes.observer import Observer
from aotair.target.target import Target


def test_noops_fire():
    module = trace(lambda x: (x.clone().view(2, 3).transpose(1, 1)[0:2] + 1,), torch.zeros(2, 3))
    assert run_pass(remove_noop_ops, module).count >= 3
    assert targets(module) == ["aten.add.Tensor"]


def test_a_copy_over_a_tensor_of_the_same_layout_is_its_source():
    copy = torch.ops.aten.copy.default
    module = trace(lambda x, y: (copy(x, y * 2) + 1,), torch.zeros(2, 3), torch.ones(2, 3))
    assert run_pass(remove_noop_ops, module).count == 1
    assert targets(module) == ["aten.mul.Tensor", "aten.add.Tensor"]
    module = trace(lambda x, y: (copy(x, y * 2) + 1,), torch.zeros(2, 3), torch.ones(3))  # broadcast
    assert run_pass(remove_noop_ops, module).count == 0
    module = trace(lambda x, y: (copy(x, y * 2) + 1,), torch.zeros(2, 3), torch.ones(2, 3).double())
    assert run_pass(remove_noop_ops, module).count == 0


def test_noops_decline_where_something_changes():
    cases = [
        lambda x: (x.t().clone(memory_format=torch.contiguous_format) + 1,),  # other strides
        lambda x: (x.to(torch.float64) + 1,),  # other dtype
        lambda x: (x[:1] + 1,),  # other shape
        lambda x: (x.expand(4, 2, 3) + 1,),
        lambda x: (x.view(3, 2) + 1,),
    ]
    for case in cases:
        module = trace(case, torch.zeros(2, 3))
        before = targets(module)
        assert run_pass(remove_noop_ops, module).count == 0
        assert targets(module) == before


def test_noops_decline_where_the_memory_is_written():
    def saves_the_old_value(x):
        old = x.clone()
        x.copy_(x + 1)
        return (old,)

    module = trace(saves_the_old_value, torch.zeros(2, 3))
    assert run_pass(remove_noop_ops, module).count == 0
    assert "aten.clone.default" in targets(module)


def test_noops_keep_the_numbers():
    function = lambda x: (x.clone().view(2, 3)[0:2] * 2 + x.transpose(0, 0),)  # noqa: E731
    module = trace(function, torch.zeros(2, 3))
    run_pass(remove_noop_ops, module)
    x = torch.randn(2, 3)
    assert torch.equal(module(x)[0], function(x)[0])


def test_dead_code_goes_and_effects_stay():
    def function(x, y):
        x * 3
        y.copy_(x)
        return (x + 1,)

    module = trace(function, torch.zeros(2), torch.zeros(2))
    module.graph.create_node("call_function", torch.ops.aten.neg.default, (next(iter(module.graph.nodes)),))
    run_pass(remove_dead_code, module)
    assert targets(module) == ["aten.copy_.default", "aten.add.Tensor"]


def test_passes_change_nothing_the_second_time():
    for name in ("encoder", "cache", "views"):
        recipe, result = exported(name)
        pipeline.apply(result.module, recipe.config, Observer(Target("cpu")))
        once = show(result.module)
        observer = Observer(Target("cpu"))
        pipeline.apply(result.module, recipe.config, observer)
        assert [record.rewrites for record in observer.records] == [0] * len(observer.records)
        assert show(result.module) == once


def test_an_option_switches_a_pass_off():
    recipe, result = exported("encoder")
    recipe.config.experimental_config.remove_noop_ops = False
    observer = Observer(Target("cpu"))
    try:
        pipeline.apply(result.module, recipe.config, observer)
        assert "remove_noop_ops" not in [record.name for record in observer.records]
    finally:
        recipe.config.experimental_config.remove_noop_ops = True


def test_a_returned_copy_of_an_input_is_kept_and_others_are_not():
    def function(x):
        return x.clone(), x.clone() + 1, (x + 1).clone()

    module = trace(function, torch.ones(2, 3))
    run_pass(remove_noop_ops, module)
    assert targets(module).count("aten.clone.default") == 1
    assert str(module.graph.output_node().args[0][0].target) == "aten.clone.default"
