"""What a pass reports through: leave for each rewrite, its accounts, and the lines of the log."""

import logging
import re

import pytest
import torch
from cases import recipe
from graphs import trace

import aotair
from aotair.passes.edits import Account, Edits
from aotair.target.target import Target

JOINED = recipe("Joined", {"x": {"shape": ["n", 64], "dtype": "float32"}}, {"n": [4, 8]})


def test_the_debug_log_names_graph_and_line_of_each_rewrite(tmp_path, caplog):
    made = JOINED | {"config": {"debug": {"graph_dump": {"path": str(tmp_path / "dump")}}}}
    with caplog.at_level(logging.DEBUG, logger="aotair"):
        aotair.build(made, tmp_path / "x.aotair")
    said = [m for m in caplog.messages if m.startswith("remove_cat_ops") and "are written where they belong" in m]
    assert [m.partition(":")[0] for m in said] == ["remove_cat_ops (n=4)", "remove_cat_ops (n=8)"]
    line, name = re.search(r"line (\d+), (\w+)", said[0]).groups()
    assert int(line) >= 1 and name.startswith("cat")


def edits(limit: int | None = None, graph: str = "") -> Edits:
    return Edits("mine", Target("cpu"), limit, graph)


def product() -> tuple[torch.fx.GraphModule, torch.fx.Node]:
    module = trace(lambda x: (x * 2,), torch.ones(2))
    return module, module.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)[0]


@pytest.mark.parametrize(("limit", "may"), [(None, [True] * 3), (0, [False] * 3), (2, [True, True, False])])
def test_leave_is_given_up_to_the_limit(limit, may):
    _, node = product()
    one = edits(limit)
    assert [one.may(node, "changed") for _ in range(3)] == may
    assert one.count == sum(may) == len(one.accounts)


def test_the_accounts_say_what_became_of_each_candidate():
    _, node = product()
    node.meta["stack_trace"] = '  File "/home/me/model.py", line 12, in forward\n    return x * 2'
    one = edits()
    one.may(node, "written in place")
    one.declined(node, "it is an input")
    one.missing(torch.ops.aten.cos.default, "nothing calls it")
    place = "model.py:12, in forward"
    assert one.accounts == [
        Account(True, "mul", "aten.mul.Tensor", "written in place", place),
        Account(False, "mul", "aten.mul.Tensor", "it is an input", place),
        Account(False, "", "aten.cos.default", "nothing calls it", ""),
    ]


@pytest.mark.parametrize(("graph", "start"), [("", "mine: "), ("n=4", "mine (n=4): ")])
def test_the_log_has_a_line_for_each(graph, start, caplog):
    module, node = product()
    one = edits(graph=graph)
    with caplog.at_level(logging.DEBUG, logger="aotair"):
        one.may(node, "changed")
        one.declined(node, "it is needed")
        one.skipped("it has streams")
        one.missing("cos", "nothing calls it")
        node.replace_all_uses_with(node.args[0])
        module.graph.erase_node(node)
        one.may(node, "removed")
    assert [record.getMessage() for record in caplog.records if record.name == "aotair"] == [
        f"{start}line 2, mul changed",
        f"{start}line 2, mul (aten.mul.Tensor) stays as it is: it is needed",
        f"{start}skipped, because it has streams",
        "mine: no cos: nothing calls it",
        f"{start}mul, which is gone, removed",
    ]
