"""What a build says and writes down: the logger, the debug log's graphs and lines, dumps, and where passes stop."""

import logging
import re
import subprocess
import sys

import pytest
import torch
from cases import RECIPES, ROOT, recipe
from graphs import trace

import aotair
from aotair.builder import build_with_summary
from aotair.errors import GraphError
from aotair.graph.show import position, show
from aotair.passes.observer import Observer
from aotair.passes.pipeline import BUCKET_PIPELINE, REINPLACE, apply, apply_to_bucket, pipeline
from aotair.recipe.config import CompilerConfig
from aotair.summary import Bisection, Listener
from aotair.target.target import Target
from aotair_runtime.artifact.open import read_program

JOINED = recipe("Joined", {"x": {"shape": ["n", 64], "dtype": "float32"}}, {"n": [4, 8]})

# ---- the logger -----------------------------------------------------------------------------------------------------

SETTINGS = {
    "nothing": ("", "[DEBUG] aotair "),
    "the root": ("logging.basicConfig(format='APP %(message)s')", "APP "),
    "the root, after": ("aotair.logger; logging.basicConfig(format='APP %(message)s')", "APP "),
    "a handler of its own": (
        "own = logging.StreamHandler(); own.setFormatter(logging.Formatter('OWN %(message)s'))\n"
        "aotair.logger.addHandler(own)",
        "OWN ",
    ),
    "the root, out of reach": (
        "logging.basicConfig(format='APP %(message)s'); aotair.logger.propagate = False",
        "[DEBUG]",
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_line_is_seen_once_whoever_configures_logging(setting: str):
    script, start = SETTINGS[setting]
    script = f"import logging, aotair\n{script}\naotair.logger.setLevel(logging.DEBUG)\naotair.logger.debug('one line')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert line.startswith(start) and line.endswith("one line") and not done.stdout


def test_it_is_the_logger_that_the_builder_logs_to_and_it_is_quiet_by_default():
    assert aotair.logger is logging.getLogger("aotair")
    script = "import aotair; aotair.logger.info('nothing'); aotair.logger.warning('something')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "something" in done.stderr and "nothing" not in done.stderr


# ---- the debug log --------------------------------------------------------------------------------------------------


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


def test_the_debug_log_names_graph_and_line_of_each_rewrite(tmp_path, caplog):
    made = JOINED | {"config": {"debug": {"graph_dump": {"path": str(tmp_path / "dump")}}}}
    with caplog.at_level(logging.DEBUG, logger="aotair"):
        aotair.build(made, tmp_path / "x.aotair")
    said = [m for m in caplog.messages if m.startswith("remove_cat_ops") and "are written where they belong" in m]
    assert [m.partition(":")[0] for m in said] == ["remove_cat_ops (n=4)", "remove_cat_ops (n=8)"]
    line, name = re.search(r"line (\d+), (\w+)", said[0]).groups()
    assert int(line) >= 1 and name.startswith("cat")


def test_the_line_is_that_of_a_dump():
    module = trace(lambda x: (x.relu() + 1,), torch.ones(2))
    for number, line in enumerate(show(module).splitlines()[:-1], 1):
        (node,) = (node for node in module.graph.nodes if node.name == line.partition(":")[0])
        assert position(node) == number
    (node,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    node.replace_all_uses_with(node.args[0])
    module.graph.erase_node(node)
    assert position(node) is None


def test_the_log_changes_no_byte_of_an_artifact(tmp_path, caplog):
    aotair.build(JOINED, tmp_path / "a.aotair")
    with caplog.at_level(logging.DEBUG, logger="aotair"):
        aotair.build(JOINED, tmp_path / "b.aotair")
    for file in sorted((tmp_path / "a.aotair").iterdir()):
        assert file.read_bytes() == (tmp_path / "b.aotair" / file.name).read_bytes(), file.name


# ---- dumps ----------------------------------------------------------------------------------------------------------


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


# ---- passes over buckets, and where passes stop ---------------------------------------------------------------------


def build(tmp_path, stop_after=None, max_rewrites=None, made=JOINED):
    summary = build_with_summary(made, tmp_path / "x.aotair", Listener(), Bisection(stop_after, max_rewrites))
    ops = {op.name for op in read_program(tmp_path / "x.aotair").ops}
    return summary, ops


def test_passes_over_buckets_are_counted_stopped_and_limited(tmp_path):
    summary, whole = build(tmp_path)
    assert summary.rewrites["remove_cat_ops"] == 2, "one for each bucket"
    assert "aten::cat.out" not in whole
    for stop, limit in (("merge_copies", None), ("remove_dead_code:1", None), (None, 0)):
        summary, ops = build(tmp_path, stop, limit)
        assert "remove_cat_ops" not in summary.rewrites and "aten::cat.out" in ops, (stop, limit)
    before = sum(count for name, count in build(tmp_path)[0].rewrites.items() if name != "remove_cat_ops")
    summary, ops = build(tmp_path, max_rewrites=before + 1)
    assert summary.rewrites["remove_cat_ops"] == 1 and "aten::cat.out" in ops, "the first bucket's alone"
    assert build(tmp_path, "remove_cat_ops")[1] == whole


def ran(stop_after, name="encoder") -> list[str]:
    from aotair.export.export import export
    from aotair.model.load import load_model
    from aotair.recipe.job import job_of
    from aotair.recipe.read import parse_recipe

    parsed = job_of(parse_recipe(RECIPES[name]))
    exported, observer = export(load_model(parsed), parsed.entries[0]), Observer(Target("cpu"))
    apply(exported.module, parsed.config, observer, stop_after)
    return [record.name for record in observer.records]


def test_a_pass_that_runs_again_stops_after_its_last_run_or_the_one_that_is_asked_for():
    whole = ran(None)
    steps = [step.name for step in pipeline(CompilerConfig(), Target("cpu")) if step.enabled(CompilerConfig())]
    assert whole[: len(steps)] == steps
    assert steps.count("remove_noop_ops") == 2 and steps.count("merge_duplicates") == 2
    for name in ("merge_duplicates", "remove_noop_ops"):
        first, second = (index for index, step in enumerate(steps) if step == name)
        assert ran(f"{name}:1") == steps[: first + 1]
        assert ran(f"{name}:2") == ran(name) == steps[: second + 1]
    assert ran("streams") == steps[: steps.index("streams") + 1]
    for step in REINPLACE:
        assert ran(step.name) == whole, "its last run comes when nothing is found any more"
    assert ran("remove_dead_code:1") == steps[: steps.index("remove_dead_code") + 1]
    assert ran("remove_dead_code:3") == steps


@pytest.mark.parametrize(
    "wrong", ["nothing", "streams:2", "streams:0", "streams:", "streams:x", "remove_cat_ops:2", ":1"]
)
def test_a_run_that_there_is_not_is_refused(wrong: str):
    with pytest.raises(GraphError) as caught:
        ran(wrong)
    assert "streams" in str(caught.value) or "1 to 1" in str(caught.value)


def test_a_repeated_pass_that_found_nothing_earlier_says_that_nothing_was_left_out(caplog):
    with caplog.at_level(logging.WARNING, logger="aotair"):
        assert ran("merge_copies:99") == ran(None)
    assert "the pass merge_copies ran" in caplog.text and "no pass was left out" in caplog.text


def test_buckets_may_be_given_to_the_passes_alone():
    function = lambda x: (torch.cat([x.tanh(), x.exp()]),)  # noqa: E731
    for stop, left in ((None, 0), ("remove_cat_ops", 0), ("streams", 1)):
        module = trace(function, torch.ones(2, 3))
        apply_to_bucket(module, CompilerConfig(), Target("cpu"), stop_after=stop)
        assert len(module.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)) == left


def test_the_help_says_how_a_run_is_meant():
    command = [sys.executable, "-m", "aotair.cli", "build", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "PASS:2" in done.stdout


def test_what_runs_over_buckets_can_be_named(tmp_path):
    with pytest.raises(GraphError, match="no pass 'cats' to stop after") as caught:
        build(tmp_path, "cats")
    assert all(step.name in str(caught.value) for step in BUCKET_PIPELINE)
