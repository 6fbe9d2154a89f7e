"""Which kernel each node gets, and in which form it is called."""

import importlib

import pytest
import torch
from cases import MODELS
from graphs import trace

import aotair
from aotair.errors import UnsupportedError
from aotair.graph.streams import RECORD
from aotair.lower.graph_builder import GraphBuilder
from aotair.lower.select import Kernel, Way, select
from aotair.target.target import Target


def test_an_op_that_the_device_cannot_run_is_refused_by_name_and_line(tmp_path):
    recipe = {
        "name": "hostonly",
        "model": {"factory": f"{MODELS}:HostOnly"},
        "inputs": {"x": {"shape": [3, 3], "dtype": "float32"}},
        "target": {"device": "npu"},
    }
    with pytest.raises(UnsupportedError, match="no kernel on npu") as caught:
        aotair.build(recipe, tmp_path / "x.aotair")
    assert "models.py" in str(caught.value)
    aotair.build(recipe | {"target": {"device": "cpu"}}, tmp_path / "x.aotair")


aten = torch.ops.aten
X = torch.zeros(4, 6)


def kernels_of(function, *inputs, target: str = "cpu") -> dict:
    module = trace(function, *inputs)
    return {node.name: kernel for node, kernel in select(module.graph, Target(target)).items()}


def only(function, *inputs, target: str = "cpu") -> Kernel:
    (kernel,) = kernels_of(function, *inputs, target=target).values()
    return kernel


@pytest.mark.parametrize(
    ("function", "way", "op"),
    [
        (lambda x: (aten.empty_like(x),), Way.NOTHING, aten.empty_like.default),
        (lambda x: (aten.new_empty(x, [2]),), Way.NOTHING, aten.new_empty.default),
        (lambda x: (x.clone(),), Way.COPY, aten.copy_.default),
        (lambda x: (x.to(torch.float64),), Way.COPY, aten.copy_.default),
        (lambda x: (torch.zeros_like(x),), Way.FILL, aten.fill_.Scalar),
        (lambda x: (x.new_full([3], 2.5),), Way.FILL, aten.fill_.Scalar),
        (lambda x: (x.exp(),), Way.OUT, aten.exp.out),
        (lambda x: (x.topk(2)[0],), Way.OUT, aten.topk.values),
        (lambda x: (x.add_(1),), Way.EFFECT, aten.add_.Tensor),
    ],
)
def test_each_node_gets_its_kernel(function, way, op):
    found = list(kernels_of(function, X.clone()).values())
    assert (found[-1].op, found[-1].way, found[-1].workspace) == (op, way, None)


def test_views_do_not_run():
    assert list(kernels_of(lambda x: (x.t()[1:].select(0, 0) + 1,), X)) == ["add"]
    assert kernels_of(lambda x: (x.t(), x.expand(2, 4, 6)), X) == {}


def test_parts_of_results_do_not_run():
    assert list(kernels_of(lambda x: x.topk(2), X)) == ["topk"]


def test_what_is_written_in_place_runs_though_it_returns_no_new_memory():
    found = kernels_of(lambda x: (x.view(24).mul_(2),), X.clone())
    assert [kernel.way for kernel in found.values()] == [Way.EFFECT]


def test_events_run():
    module = trace(lambda x: (x + 1,), X)
    add = next(node for node in module.graph.nodes if node.name == "add")
    with module.graph.inserting_before(add):
        record = module.graph.call_function(RECORD, ("a",))
    record.meta |= {"event": 0, "val": None}
    assert select(module.graph, Target("cpu"))[record] == Kernel(RECORD, Way.EVENT)


def test_kernels_are_those_of_the_nodes_in_order():
    found = kernels_of(lambda x: ((x + 1).exp().sin(),), X)
    assert list(found) == ["add", "exp", "sin"]


def test_a_composite_that_is_large_is_cut_on_the_cpu_alone():
    def way(rows: int, target: str) -> Way:
        build = GraphBuilder()
        x = build.placeholder("x", (rows, 512), (512, 1), torch.float32)
        build.graph.output((build.call(aten.layer_norm.default, x, [512]),))
        (kernel,) = select(build.graph, Target(target)).values()
        return kernel.way

    assert way(4096, "cpu") is Way.SLICES
    assert way(4, "cpu") is way(4096, "cuda") is Way.FRESH


def test_what_writes_and_returns_more_is_an_effect_and_a_copy():
    lib = torch.library.Library("aotairselect", "FRAGMENT")
    lib.define("both(Tensor(a!) x) -> Tensor")
    lib.impl("both", lambda x: x.add_(1) * 2, "CPU")
    lib.impl("both", torch.empty_like, "Meta")
    assert only(lambda x: (torch.ops.aotairselect.both(x),), X.clone()).way is Way.EFFECT_AND_COPY


def test_lists_of_the_host_are_taken_on_the_device_that_takes_them():
    importlib.import_module("aotair.ops.npu")
    attention = torch.ops.air.fused_infer_attention_score

    def function(x, lengths):
        return (attention(x, x, x, actual_seq_lengths_kv_tensor=lengths)[0],)

    given = torch.zeros(2, 1, 16), torch.tensor([1, 1])
    kernel = only(function, *given, target="npu")
    assert kernel.way is Way.LISTS and kernel.writes_all
    assert kernel.op is torch.ops.npu.npu_fused_infer_attention_score.out
    assert kernel.workspace is torch.ops.npu._npu_fused_infer_attention_score_get_max_workspace.default
    assert only(function, *given).way is Way.FRESH


@pytest.mark.parametrize("way", Way)
def test_a_kernel_that_writes_to_places_needs_one_for_each_result(way):
    assert Kernel(aten.exp.out, way).writes_all == (way in (Way.OUT, Way.LISTS))


def test_an_op_without_a_kernel_is_refused_with_its_line():
    module = trace(lambda x: (aten._logcumsumexp(x, 0),), X)
    (node,) = (n for n in module.graph.nodes if n.op == "call_function")
    node.meta["stack_trace"] = '  File "/somewhere/model.py", line 7, in forward\n    text\n'
    with pytest.raises(UnsupportedError) as caught:
        select(module.graph, Target("npu"))
    assert caught.value.what == f"the op {node.target} has no kernel on npu (model.py:7, in forward)"
    assert "write it with other ops" in caught.value.fix
