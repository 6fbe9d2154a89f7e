"""The observer: what it logs, dumps, counts and refuses around each pass."""

import logging
import re
from pathlib import Path

import pytest
import torch
from cases import RECIPES, recipe
from graphs import trace

import aotair
from aotair.errors import GraphError, InternalError
from aotair.passes.observer import Observer
from aotair.target.target import Target

JOINED = recipe("Joined", {"x": {"shape": ["n", 64], "dtype": "float32"}}, {"n": [4, 8]})


def scopes(gm, example_inputs, config) -> None:
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default):
        with gm.graph.inserting_before(node):
            gm.graph.call_function(torch.ops.air.scope_enter.default, (["_user_stream_label"], ["side"]))
        with gm.graph.inserting_after(node):
            gm.graph.call_function(torch.ops.air.scope_exit.default, ())


def test_the_debug_log_shows_where_a_pass_put_its_nodes(tmp_path, caplog):
    with caplog.at_level(logging.DEBUG, logger="aotair"):
        aotair.build(JOINED, tmp_path / "x.aotair", post_grad_custom_pre_pass=scopes)
    (shown,) = (m for m in caplog.messages if m.startswith("post_grad_custom_pre_pass: the graph"))
    added = [line for line in shown.splitlines() if line.startswith(("+", "-")) and not line.startswith(("+++", "---"))]
    assert [line.split(" = ")[1].partition("(")[0] for line in added] == [
        "air.scope_enter.default",
        "air.scope_exit.default",
    ]
    assert re.search(r"^@@ -\d+,\d+ \+\d+,\d+ @@$", shown, re.MULTILINE)
    (streams,) = (m for m in caplog.messages if m.startswith("streams: the graph"))
    assert re.search(r"^\+tanh.* # stream 1$", streams, re.MULTILINE)


def test_the_log_changes_no_byte_of_an_artifact(tmp_path, caplog):
    aotair.build(JOINED, tmp_path / "a.aotair")
    with caplog.at_level(logging.DEBUG, logger="aotair"):
        aotair.build(JOINED, tmp_path / "b.aotair")
    for file in sorted(filter(Path.is_file, (tmp_path / "a.aotair").rglob("*"))):
        name = file.relative_to(tmp_path / "a.aotair")
        assert file.read_bytes() == (tmp_path / "b.aotair" / name).read_bytes(), name


def test_dumps_of_several_graphs_say_which(tmp_path):
    part = {"method": "forward", "inputs": RECIPES["linear"]["inputs"], "buckets": {"n": [1, 4]}}
    made = {key: value for key, value in RECIPES["linear"].items() if key not in ("inputs", "buckets")}
    made |= {"entry_points": {"a": part, "b": part}, "config": {"debug": {"graph_dump": {"path": str(tmp_path / "d")}}}}
    aotair.build(made, tmp_path / "x.aotair")
    names = [file.name for file in sorted((tmp_path / "d").iterdir())]
    assert names[:2] == ["00_export_a.txt", "01_export_b.txt"]
    assert [name.partition("_")[2] for name in names[-8:]] == [
        f"{step}_{entry}_n={size}.txt"
        for entry in "ab"
        for size in (1, 4)
        for step in ("fold_tables", "remove_cat_ops")
    ]


def test_a_dump_tells_a_side_stream_from_the_main_one(tmp_path):
    made = JOINED | {"config": {"debug": {"graph_dump": {"path": str(tmp_path / "d")}}}}
    aotair.build(made, tmp_path / "x.aotair", post_grad_custom_pre_pass=scopes)
    (file,) = (tmp_path / "d").glob("*_streams.txt")
    lines = [line for line in file.read_text().splitlines() if " = aten." in line]
    assert any(line.startswith("tanh") for line in lines)
    assert all(line.endswith("  # stream 1") == line.startswith("tanh") for line in lines)
    (bucket,) = (tmp_path / "d").glob("*_remove_cat_ops_n=8.txt")
    assert "# stream 1" in bucket.read_text()


def observer(**options) -> Observer:
    return Observer(Target("cpu"), **options)


def doubled() -> torch.fx.GraphModule:
    return trace(lambda x: (x * 2,), torch.ones(2))


def watched(seen: Observer, name: str, rewrites: int, module: torch.fx.GraphModule | None = None) -> None:
    module = module or doubled()
    with seen.watch(name, module) as edits:
        node = next(iter(module.graph.nodes))
        for _ in range(rewrites):
            edits.may(node, "changed")


def test_each_pass_leaves_a_record_and_rewrites_are_added_up():
    seen = observer()
    watched(seen, "one", 2)
    watched(seen, "two", 0)
    with seen.over("n=4"):
        watched(seen, "one", 1)
    assert [(r.name, r.rewrites, r.before, r.after, r.graph) for r in seen.records] == [
        ("one", 2, 3, 3, ""),
        ("two", 0, 3, 3, ""),
        ("one", 1, 3, 3, "n=4"),
    ]
    assert seen.rewrites() == {"one": 3} and len(seen.records[0].accounts) == 2
    assert all(record.seconds >= 0 for record in seen.records)


def test_all_passes_together_make_as_many_rewrites_as_are_allowed():
    seen = observer(max_rewrites=3)
    for name in ("one", "two", "three"):
        watched(seen, name, 2)
    assert seen.rewrites() == {"one": 2, "two": 1}


@pytest.mark.parametrize(("code", "ending", "text"), [(False, "txt", "aten.mul.Tensor(x_1, 2)"), (True, "py", "def f")])
def test_each_stage_is_dumped_under_its_number_and_graph(tmp_path, code, ending, text):
    seen = observer(dump=tmp_path / "new" / "folder", code=code)
    seen.stage("export", doubled())
    with seen.over("n=4, m/8"):
        watched(seen, "mine", 0)
    files = sorted((tmp_path / "new" / "folder").iterdir())
    assert [file.name for file in files] == [f"00_export.{ending}", f"01_mine_n=4_m_8.{ending}"]
    assert all(text in file.read_text() or "forward" in file.read_text() for file in files)


def test_the_graph_is_named_within_and_no_longer_even_after_an_error():
    seen = observer()
    with pytest.raises(ZeroDivisionError), seen.over("a"), seen.over("b"):
        assert seen._graph == "b"
        1 / 0  # noqa: B018
    assert seen._graph == ""


def test_a_pass_that_fails_is_a_fault_of_ours_and_says_what_came_before():
    seen = observer()
    with pytest.raises(InternalError, match=r"^the pass one failed after nothing: no$") as caught:
        fails(seen, "one", ValueError("no"))
    assert isinstance(caught.value.__cause__, ValueError)
    watched(seen, "two", 0)
    watched(seen, "three", 0)
    with pytest.raises(InternalError, match=r"^the pass one failed after two, three: no$"):
        fails(seen, "one", ValueError("no"))
    assert [record.name for record in seen.records] == ["two", "three"]


def test_what_a_user_can_mend_goes_through_as_it_is():
    with pytest.raises(GraphError, match=r"^mend it$"):
        fails(observer(), "one", GraphError("mend it"))


def fails(seen: Observer, name: str, error: Exception) -> None:
    with seen.watch(name, doubled()):
        raise error


def test_a_graph_that_is_none_is_found_after_the_pass_that_left_it():
    module = doubled()
    with (
        pytest.raises(InternalError, match=r"one.*every node carries meta"),
        observer().watch("one", module),
    ):
        del next(iter(module.graph.nodes)).meta["val"]
