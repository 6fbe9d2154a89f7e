"""`canonicalise`: each call in one way, whichever way it was written."""

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
