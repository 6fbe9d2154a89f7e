"""`remove_self_copies`: a copy of a tensor onto itself goes, every other one stays."""

import torch
from graphs import run_pass, targets, trace

from aotair.passes import remove_self_copies

SQUARE = torch.arange(16.0).view(4, 4) / 9 + 0.1


def test_self_copies_go_and_others_stay():
    def function(x, y):
        torch.ops.aten.copy_.default(x, torch.ops.aten.add_.Tensor(x, 1))
        torch.ops.aten.copy_.default(y, x)
        torch.ops.aten.copy_.default(y, y.t())
        return (y + 0,)

    module = trace(function, SQUARE.clone(), SQUARE.clone())
    assert run_pass(remove_self_copies, module).count == 1
    assert targets(module).count("aten.copy_.default") == 2
