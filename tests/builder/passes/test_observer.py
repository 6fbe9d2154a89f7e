"""The observer: what it logs, dumps, counts and refuses around each pass."""

import logging
import re

import torch
from cases import RECIPES, recipe

import aotair

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
    for file in sorted((tmp_path / "a.aotair").iterdir()):
        assert file.read_bytes() == (tmp_path / "b.aotair" / file.name).read_bytes(), file.name


def test_dumps_of_several_graphs_say_which(tmp_path):
    part = {"method": "forward", "inputs": RECIPES["linear"]["inputs"], "buckets": {"n": [1, 4]}}
    made = {key: value for key, value in RECIPES["linear"].items() if key not in ("inputs", "buckets")}
    made |= {"entry_points": {"a": part, "b": part}, "config": {"debug": {"graph_dump": {"path": str(tmp_path / "d")}}}}
    aotair.build(made, tmp_path / "x.aotair")
    names = [file.name for file in sorted((tmp_path / "d").iterdir())]
    assert names[:2] == ["00_export_a.txt", "01_export_b.txt"]
    assert [name.partition("_")[2] for name in names[-4:]] == [
        f"remove_cat_ops_{entry}_n={size}.txt" for entry in "ab" for size in (1, 4)
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
