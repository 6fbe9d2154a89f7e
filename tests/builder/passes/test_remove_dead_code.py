"""`remove_dead_code`: what nobody uses goes, what has an effect stays."""

import torch
from graphs import run_pass, targets, trace

from aotair.passes import remove_dead_code


def test_dead_code_goes_and_effects_stay():
    def function(x, y):
        x * 3
        y.copy_(x)
        return (x + 1,)

    module = trace(function, torch.zeros(2), torch.zeros(2))
    module.graph.create_node("call_function", torch.ops.aten.neg.default, (next(iter(module.graph.nodes)),))
    run_pass(remove_dead_code, module)
    assert targets(module) == ["aten.copy_.default", "aten.add.Tensor"]
