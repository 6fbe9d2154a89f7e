"""A plan as a picture shows it: one strip for each interval, its kind, who lies in it, and the step of the peak."""

import pytest
import torch
from graphs import trace

from aotair.graph.streams import RECORD
from aotair.lower.select import select
from aotair.plan.lifetimes import lifetimes
from aotair.plan.picture import Picture, Strip, drawn_peak, picture
from aotair.plan.search.arena import plan_arena
from aotair.target.target import Target
from aotair_runtime.format.schema import Space


def drawn(function, *inputs, spaces=None, alignment: int = 64) -> Picture:
    module = trace(function, *inputs)
    places = {node.name: Space.INPUT for node in module.graph.find_nodes(op="placeholder")} | (spaces or {})
    lives = lifetimes(module.graph, places, select(module.graph, Target("cpu")))
    return picture(module.graph, lives, plan_arena(lives.intervals, alignment), alignment)


X = torch.zeros(2, 3)


def test_each_interval_is_a_strip_of_its_kind():
    shown = drawn(lambda x: ((x + 1) * 2,), X)
    found = [(s.kind, s.name, s.size, s.first, s.last, s.dtype, s.shape) for s in shown.strips]
    assert found == [
        ("input", "x_1", 24, 0, 1, "float32", (2, 3)),
        ("inner", "add", 24, 1, 2, "float32", (2, 3)),
        ("output", "mul", 24, 2, 3, "float32", (2, 3)),
    ]
    assert shown.steps == ("inputs are copied in", "add", "mul", "results are handed out")
    assert (shown.height, shown.alignment) == (128, 64)


def test_who_shares_the_memory_is_named():
    def function(x):
        total = x + 1
        return (total.view(6)[2:] * 2, total.t())

    strips = {strip.name: strip for strip in drawn(function, X).strips}
    assert strips["add"].others == ("view", "slice_1", "t") and strips["add"].kind == "output"
    assert strips["x_1"].others == () and strips["mul"].shape == (4,)


def test_an_input_that_is_returned_is_an_input():
    (strip,) = drawn(lambda x: (x.view(6),), X).strips
    assert (strip.kind, strip.name, strip.others) == ("input", "x_1", ("view",))


@pytest.mark.parametrize("space", [Space.CONSTANT, Space.STATE, Space.CALLER])
def test_what_lies_elsewhere_is_not_drawn(space):
    shown = drawn(lambda x, w: (x + w, w.view(6)), X, torch.zeros(2, 3), spaces={"w_1": space})
    assert [strip.name for strip in shown.strips] == ["x_1", "add"]


def test_intervals_of_nothing_are_not_drawn():
    shown = drawn(lambda x, y: (x + 1, y + 1), torch.zeros(0, 3), X)
    assert [strip.name for strip in shown.strips] == ["y_1", "add_1"]


def test_parts_of_a_result_have_their_number():
    shown = drawn(lambda x: (x.topk(2)[1].view(4),), X)
    strips = {strip.name: strip for strip in shown.strips}
    values, indices = strips["topk[0]"], strips["topk[1]"]
    assert (values.dtype, values.shape, values.kind) == ("float32", (2, 2), "inner")
    assert (indices.dtype, indices.shape, indices.kind) == ("int64", (2, 2), "output")
    assert indices.others == ("view",)


def test_the_line_is_that_of_the_first_tensor_that_has_one():
    module = trace(lambda x: ((x + 1).view(6),), X)
    nodes = {node.name: node for node in module.graph.nodes}
    frame = '  File "/somewhere/model.py", line {}, in forward\n    text\n'
    lives = lifetimes(module.graph, {"x_1": Space.INPUT}, select(module.graph, Target("cpu")))
    plan = plan_arena(lives.intervals, 64)

    def line() -> str:
        (strip,) = (s for s in picture(module.graph, lives, plan, 64).strips if s.name == "add")
        return strip.source

    for node in nodes.values():
        node.meta.pop("stack_trace", None)
    assert line() == ""
    nodes["view"].meta["stack_trace"] = frame.format(7)
    assert line() == "model.py:7, in forward"
    nodes["add"].meta["stack_trace"] = frame.format(5)
    assert line() == "model.py:5, in forward"


def test_an_empty_arena_has_no_strips():
    shown = drawn(lambda w: (w,), X, spaces={"w_1": Space.CALLER})
    assert (shown.strips, shown.height) == ((), 0) and len(shown.steps) == 2
    peak = drawn_peak(shown)
    assert (peak.step, peak.nbytes, peak.strips) == (0, 0, ())


def test_events_are_steps_too():
    module = trace(lambda x: (x + 1,), X)
    add = next(node for node in module.graph.nodes if node.name == "add")
    with module.graph.inserting_before(add):
        record = module.graph.call_function(RECORD, ("a",))
    record.meta |= {"event": 0, "val": None}
    lives = lifetimes(module.graph, {"x_1": Space.INPUT}, select(module.graph, Target("cpu")))
    shown = picture(module.graph, lives, plan_arena(lives.intervals, 64), 64)
    assert shown.steps[1:-1] == (record.name, "add")


# ---- the peak --------------------------------------------------------------------------------------------------------


def strip(offset: int, size: int, first: int, last: int) -> Strip:
    return Strip(offset, size, first, last, "inner", f"at_{offset}", "uint8", (size,), (), "")


def shown(*strips: Strip, alignment: int = 1, steps: int = 6) -> Picture:
    return Picture(tuple(map(str, range(steps))), 0, alignment, strips)


def test_the_peak_is_the_first_step_at_which_most_is_alive():
    found = drawn_peak(shown(strip(0, 5, 0, 1), strip(5, 5, 2, 3), strip(10, 1, 3, 4), strip(11, 5, 5, 5)))
    assert (found.step, found.nbytes) == (3, 6)
    assert drawn_peak(shown(strip(0, 5, 1, 1), strip(0, 5, 4, 5))).step == 1


def test_the_strips_of_the_peak_come_largest_first_and_then_lowest_first():
    a, b, c = strip(8, 4, 0, 2), strip(0, 4, 1, 1), strip(16, 9, 1, 5)
    assert drawn_peak(shown(a, b, c, strip(30, 1, 2, 2))).strips == (c, b, a)


def test_the_room_of_a_strip_is_rounded_up():
    """Three small ones take more room than a large one."""
    small = [strip(64 * place, 1, 0, 0) for place in range(3)]
    found = drawn_peak(shown(*small, strip(0, 100, 1, 1), alignment=64))
    assert (found.step, found.nbytes) == (0, 192)
    assert drawn_peak(shown(*small, strip(0, 100, 1, 1))).step == 1


def test_a_strip_lives_at_its_last_step_too():
    found = drawn_peak(shown(strip(0, 4, 0, 2), strip(4, 4, 2, 5), strip(8, 4, 5, 5)))
    assert (found.step, found.nbytes) == (2, 8)
