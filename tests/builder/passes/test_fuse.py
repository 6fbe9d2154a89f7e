"""A rule over a graph: what keeps a match from being replaced, whichever rule it is, and what is said of it."""

import operator

import near
import torch
from fusing import ROWS, declines, fires, norm

from aotair import fusion

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
