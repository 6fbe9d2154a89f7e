"""What a pass changed: the places, their modules, and what stands around them."""

import torch
from graphs import trace

from aotair.passes.changes import Change, changes, lines_of
from aotair.passes.observer import Observer
from aotair.target.target import Target


def lines(*texts: str) -> tuple[tuple[str, str], ...]:
    """`module: text` for each line."""
    return tuple((text.partition(": ")[2], text.partition(": ")[0]) for text in texts)


def test_a_place_stands_between_lines_that_stayed():
    before = lines("m: a", "m: b", "m: c", "n: d", "m: e")
    after = lines("m: a", "m: b", "m: c", "n: D", "m: e")
    assert changes(before, after) == (Change("n", ("b", "c"), ("d",), ("D",), ("e",)),)
    assert changes(before, before) == ()


def test_what_is_gone_has_the_module_that_it_had():
    (gone,) = changes(lines("m: a", "n: b"), lines("m: a"))
    assert gone == Change("n", ("a",), ("b",), (), ())


def test_a_place_through_several_modules_is_told_module_by_module():
    found = changes(lines("m: a", "m: b", "n: c"), lines("m: A", "m: B", "n: C"))
    assert [(one.module, one.before, one.after) for one in found] == [
        ("m", ("a", "b"), ("A", "B")),
        ("n", ("c",), ("C",)),
    ]
    (whole,) = changes(lines("m: a", "n: b"), lines("n: A", "m: B"))
    assert (whole.before, whole.after) == (("a", "b"), ("A", "B")), "not where the modules differ"


def doubled() -> torch.fx.GraphModule:
    return trace(lambda x: (x * 2,), torch.ones(2))


def test_an_observer_keeps_changes_where_it_is_asked_to():
    for keeps in (False, True):
        seen, module = Observer(Target("cpu"), keeps=keeps), doubled()
        for name in ("one", "two"):
            with seen.watch(name, module):
                (call,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
                call.args = (call.args[0], call.args[1] + 1)
        texts = [[(one.before, one.after) for one in record.changes] for record in seen.records]
        if not keeps:
            assert texts == [[], []]
            continue
        (((one, two),), ((three, four),)) = texts
        assert two == three and one != two != four
        assert lines_of(module)[1][0] == four[0]
