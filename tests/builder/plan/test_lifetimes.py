"""From a graph to intervals: who needs memory, how much, from when to when, and what lies in another's."""

import pytest
import torch
from graphs import trace
from torch._subclasses.fake_tensor import FakeTensorMode

from aotair.graph.streams import RECORD
from aotair.lower.select import select
from aotair.plan.lifetimes import Home, Root, lifetimes
from aotair.target.target import Target
from aotair_runtime.format.schema import Space


def test_lifetimes_follow_memory_through_views():
    def function(x):
        a = x + 1  # step 1, alive until the view of it is used
        b = a.view(6)
        c = x * 2  # step 2
        d = b + c.view(6)  # step 3
        return (d.view(2, 3), c)

    module = trace(function, torch.zeros(2, 3))
    lives = lifetimes(module.graph, {"x_1": Space.INPUT}, select(module.graph, Target("cpu")))
    spans = [(item.size, item.first, item.last) for item in lives.intervals]
    assert spans == [(24, 0, 2), (24, 1, 3), (24, 2, 4), (24, 3, 4)]
    nodes = {node.name: node for node in module.graph.nodes}
    assert lives.home(nodes["view"]) == lives.home(nodes["add"])


def lives_of(function, *inputs, spaces=None, target: str = "cpu"):
    """The graph's nodes by name, and their lifetimes; what `spaces` does not name is a user input."""
    module = trace(function, *inputs)
    module.graph.eliminate_dead_code()  # make_fx takes out each of several results
    nodes = {node.name: node for node in module.graph.nodes}
    places = {node.name: Space.INPUT for node in module.graph.find_nodes(op="placeholder")} | (spaces or {})
    return nodes, lifetimes(module.graph, places, select(module.graph, Target(target)))


def spans(lives) -> list[tuple[int, int, int]]:
    return [(item.size, item.first, item.last) for item in lives.intervals]


X = torch.zeros(2, 3)


def test_an_input_that_nobody_reads_is_copied_in_and_gone():
    nodes, lives = lives_of(lambda x, y: (x + 1,), X, torch.zeros(4))
    assert spans(lives) == [(24, 0, 1), (16, 0, 0), (24, 1, 2)]
    assert lives.copies == {0: 0, 1: 1}
    assert lives.home(nodes["y_1"]) == Home(Root(Space.INPUT, 1), 0)


def test_a_graph_that_computes_nothing_hands_out_its_inputs_copy():
    nodes, lives = lives_of(lambda x: (x,), X)
    assert lives.launches == () and spans(lives) == [(24, 0, 1)]
    assert lives.home(nodes["x_1"]).root.space == Space.INPUT


@pytest.mark.parametrize("space", [Space.CONSTANT, Space.STATE, Space.CALLER])
def test_what_lies_elsewhere_takes_nothing_of_the_arena(space):
    nodes, lives = lives_of(lambda x, w: (x + w,), X, torch.zeros(2, 3), spaces={"w_1": space})
    assert spans(lives) == [(24, 0, 1), (24, 1, 2)] and lives.copies == {0: 0}
    assert lives.home(nodes["w_1"]) == Home(Root(space, 1), 0)


def test_views_of_a_constant_lie_in_the_constant():
    nodes, lives = lives_of(lambda x, w: (x + w[1],), X, torch.zeros(2, 3), spaces={"w_1": Space.CONSTANT})
    assert lives.home(nodes["select"]) == Home(Root(Space.CONSTANT, 1), 12)
    assert [node.name for node in lives.launches] == ["add"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_offsets_are_bytes_whatever_the_dtype(dtype):
    nodes, lives = lives_of(lambda x: (x.clone()[1].clone(),), torch.zeros(2, 3).to(dtype))
    size = torch.empty(0, dtype=dtype).element_size()
    assert lives.home(nodes["select"]).offset == 3 * size
    assert spans(lives) == [(6 * size, 0, 1), (6 * size, 1, 2), (3 * size, 2, 3)]


def test_a_size_is_that_of_the_storage_and_not_of_the_tensor():
    """A transposed result has gaps nowhere, an expanded one more elements than bytes."""
    _, lives = lives_of(lambda x: ((x + 1).expand(5, 3),), torch.zeros(1, 3))
    assert spans(lives) == [(12, 0, 1), (12, 1, 2)]


def test_a_tensor_of_no_elements_takes_no_bytes():
    _, lives = lives_of(lambda x: (x + 1,), torch.zeros(0, 3))
    assert spans(lives) == [(0, 0, 1), (0, 1, 2)]


def test_of_several_results_only_those_that_are_used_have_a_place():
    """Where the op allocates them itself, and they are copied to their places."""
    nodes, lives = lives_of(lambda x: (torch.ops.aten.max_pool2d_with_indices(x, 2)[1] + 1,), torch.zeros(1, 4, 4))
    pool = nodes["max_pool2d_with_indices"]
    both = select(pool.graph, Target("cpu"))[pool].writes_all
    assert (lives.home(pool, 0) is not None) == both
    assert lives.home(pool, 1) == lives.home(nodes["getitem_1"]) is not None


def test_an_op_that_writes_into_given_tensors_gets_a_place_for_each_result():
    nodes, lives = lives_of(lambda x: (x.topk(2)[1],), X)
    topk = nodes["topk"]
    assert select(topk.graph, Target("cpu"))[topk].writes_all
    unwanted = lives.home(topk, 0)
    assert unwanted is not None and (lives.intervals[unwanted.root.index].last, len(spans(lives))) == (1, 3)


def test_results_that_nobody_wants_have_no_home():
    def function(x):
        return (torch.native_layer_norm(x, (3,), None, None, 1e-5)[0],)

    nodes, lives = lives_of(function, X, target="npu")
    norm = nodes["native_layer_norm"]
    assert not select(norm.graph, Target("npu"))[norm].writes_all
    assert [lives.home(norm, place) is not None for place in range(3)] == [True, False, False]


def test_what_is_written_in_place_lives_where_it_was():
    def function(x, cache):
        cache.copy_(x + cache)
        return (cache + 1,)

    nodes, lives = lives_of(function, X, torch.zeros(2, 3), spaces={"cache_1": Space.CALLER})
    assert lives.home(nodes["copy_"]) == lives.home(nodes["cache_1"]) == Home(Root(Space.CALLER, 1), 0)
    assert [node.name for node in lives.launches] == ["add", "copy_", "add_1"]


def test_an_input_that_is_read_through_a_view_is_kept_that_long():
    _, lives = lives_of(lambda x: (x.t() @ (x + 1),), X)
    assert spans(lives)[0] == (24, 0, 2)


def test_a_view_that_is_returned_keeps_the_whole():
    nodes, lives = lives_of(lambda x: ((x + 1)[0], x * 2), X)
    assert spans(lives) == [(24, 0, 2), (24, 1, 3), (24, 2, 3)]
    assert lives.home(nodes["select"]).root == lives.home(nodes["add"]).root


def test_on_several_streams_buffers_are_kept_for_those_that_may_still_run():
    module = trace(lambda x: ((x + 1) * 2, x - 1), X)
    nodes = {node.name: node for node in module.graph.nodes}
    kernels = select(module.graph, Target("cpu"))
    alone = lifetimes(module.graph, {"x_1": Space.INPUT}, kernels)
    nodes["sub"].meta["stream"] = 1
    beside = lifetimes(module.graph, {"x_1": Space.INPUT}, kernels)
    assert spans(alone)[1] == (24, 1, 2) and spans(beside)[1] == (24, 1, 3)


def test_events_are_launches_that_use_nothing():
    graph = torch.fx.Graph()
    with FakeTensorMode():
        x = graph.placeholder("x")
        x.meta["val"] = torch.zeros(2)
        record = graph.call_function(RECORD, ("a",))
        record.meta |= {"event": 0, "val": None}
        done = graph.call_function(torch.ops.aten.neg.default, (x,))
        done.meta["val"] = torch.zeros(2)
    graph.output((done,))
    lives = lifetimes(graph, {"x": Space.INPUT}, select(graph, Target("cpu")))
    assert lives.launches == (record, done)
    assert spans(lives) == [(8, 0, 2), (8, 2, 3)]


def test_a_home_is_asked_for_by_the_part_of_a_result_too():
    nodes, lives = lives_of(lambda x: x.topk(2), X)
    assert lives.home(nodes["getitem_1"]) == lives.home(nodes["topk"], 1) != lives.home(nodes["topk"], 0)
    assert lives.home(nodes["topk"], 7) is None
