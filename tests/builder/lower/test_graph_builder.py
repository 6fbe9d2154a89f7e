"""A graph under construction: what each call returns is worked out on fake tensors, and says where it comes from."""

import operator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from aotair.graph.fake import storage_of
from aotair.graph.streams import RECORD
from aotair.lower.graph_builder import GraphBuilder

aten = torch.ops.aten


def with_input(shape: tuple[int, ...] = (2, 3), dtype: torch.dtype = torch.float32):
    build = GraphBuilder()
    return build, build.placeholder("x", shape, torch.empty(shape).stride(), dtype)


@pytest.mark.parametrize(
    ("shape", "strides", "dtype"),
    [
        ((2, 3), (3, 1), torch.float32),
        ((2, 3), (1, 2), torch.float16),  # transposed
        ((2, 3), (0, 1), torch.int64),  # expanded
        ((), (), torch.bool),
        ((0, 3), (3, 1), torch.float32),
        ((1, 1), (1, 1), torch.bfloat16),
    ],
)
def test_a_placeholder_has_its_name_and_its_layout(shape, strides, dtype):
    build = GraphBuilder()
    node = build.placeholder("rows", shape, strides, dtype)
    value = node.meta["val"]
    assert (node.op, node.name, node.target) == ("placeholder", "rows", "rows")
    assert isinstance(value, FakeTensor) and value.fake_mode is build.mode
    assert (tuple(value.shape), value.stride(), value.dtype) == (shape, strides, dtype)


def test_a_call_knows_what_it_returns():
    build, x = with_input()
    node = build.call(aten.sum.dim_IntList, x, [1], dtype=torch.float64)
    assert node.args == (x, [1]) and node.kwargs == {"dtype": torch.float64}
    assert (tuple(node.meta["val"].shape), node.meta["val"].dtype) == ((2,), torch.float64)


def test_views_share_the_memory_of_what_they_look_at():
    build, x = with_input()
    view, copy = build.call(aten.t.default, x), build.call(aten.clone.default, x)
    assert storage_of(view.meta["val"]) == storage_of(x.meta["val"]) != storage_of(copy.meta["val"])


def test_one_of_several_results_is_taken_by_getitem():
    build, x = with_input()
    both = build.call(aten.topk.default, x, 2)
    part = build.call(operator.getitem, both, 1)
    assert part.meta["val"] is both.meta["val"][1] and part.meta["val"].dtype == torch.int64


def test_a_size_is_a_number_and_adds_no_node():
    build, x = with_input()
    assert build.evaluate(aten.sym_size.int, (x, 1), {}) == 3
    assert build.evaluate(operator.mul, (6, 7), {}) == 42
    assert [node.name for node in build.graph.nodes] == ["x"]


def test_calls_come_from_the_lines_and_run_on_the_stream_that_were_set():
    build, x = with_input()
    first = build.call(aten.neg.default, x)
    build.origin, build.stream = {"stack_trace": "a line", "made_by": ("fuse",)}, 2
    second = build.append(aten.neg.default, (x,), {})
    third = build.append(aten.neg.default, (x,), {}, "as_it_was")
    assert (first.meta.get("stack_trace"), first.meta["stream"]) == (None, 0)
    assert (second.meta["stack_trace"], second.meta["stream"]) == ("a line", 2)
    assert (second.meta["made_by"], third.meta["made_by"]) == (("fuse", "specialise"), ("fuse",))


def test_a_call_keeps_its_name_where_it_has_one():
    build, x = with_input()
    assert build.append(aten.neg.default, (x,), {}, "minus").name == "minus"
    assert build.append(aten.neg.default, (x,), {}, "minus").name != "minus", "no two nodes have one name"
    assert build.append(aten.neg.default, (x,), {}).name == "neg_default"


def test_arguments_of_an_op_may_have_the_names_of_the_builders_own():
    build, x = with_input()
    node = build.append(aten.full_like.default, (x,), {"fill_value": 2, "dtype": torch.int64}, "name")
    assert node.meta["val"].dtype == torch.int64
    other = build.call(aten.add.Tensor, self=x, other=x)
    assert other.kwargs == {"self": x, "other": x} and tuple(other.meta["val"].shape) == (2, 3)


def test_a_call_that_cannot_be_made_raises_what_torch_says():
    build, x = with_input()
    with pytest.raises(RuntimeError, match="shape"):
        build.call(aten.view.default, x, [4, 4])
    with pytest.raises(IndexError, match="out of range"):
        build.call(aten.select.int, x, 5, 0)


def test_a_kernel_that_looks_for_values_fails_and_ends_nothing():
    build, x = with_input()
    with pytest.raises(Exception, match="data"):
        build.evaluate(lambda tensor: tensor.data_ptr(), (x,), {})


def test_an_event_is_copied_with_all_that_is_known_of_it():
    other = torch.fx.Graph()
    given = other.call_function(RECORD, ("tag",))
    given.name = "record"
    given.meta |= {"val": None, "event": 3, "stream": 1, "stack_trace": "a line", "else": 7}
    build, _ = with_input()
    made = build.event(given)
    assert (made.target, made.args, made.name, made.graph) == (RECORD, ("tag",), "record", build.graph)
    assert made.meta == {"val": None, "event": 3, "stream": 1, "stack_trace": "a line"}


def test_each_builder_has_a_graph_of_its_own():
    a, b = GraphBuilder(), GraphBuilder()
    assert a.graph is not b.graph and a.mode is not b.mode and a.composed == b.composed == {}
