"""The line from a recipe to an artifact: what is asked for, in which order, and what is checked at its end."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from cases import RECIPES
from exports import job_for, model_of, shaped

import aotair
from aotair import CompilerConfig, builder, one_mesh
from aotair.builder import (
    _checked,
    _Clock,
    _export_for_its_reason,
    build_with_summary,
    explain,
    plan,
)
from aotair.errors import ExportError, InternalError, ModelError, ProofError, RecipeError, SizesError, UnsupportedError
from aotair.export.exported import Exported
from aotair.fingerprint import origin_of
from aotair.model.load import load_model
from aotair.one_mesh import _exported, _observer, labels
from aotair.passes.observer import Observer
from aotair.promise import promised
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.summary import Bisection, Listener
from aotair_runtime.artifact.open import read_program
from aotair_runtime.call.entry import Entry
from aotair_runtime.errors import AotairError, CaptureError, MemoryBudgetError
from aotair_runtime.format.schema import Origin


def _planted(error: Exception):
    """A call that fails where inputs are used in place."""
    replay = Entry._replay

    def planted(self, *args):
        if not self._plans._clone_input:
            raise error
        return replay(self, *args)

    return planted


@pytest.mark.parametrize(
    "error, found, words",
    [
        (CaptureError("planted"), ProofError, r"cannot be used with clone_input=False.*: planted"),
        (RuntimeError("planted"), InternalError, r"fails with clone_input=False.*: planted"),
    ],
)
def test_a_way_of_loading_that_fails_fails_the_build(error, found, words, tmp_path, monkeypatch):
    monkeypatch.setattr(Entry, "_replay", _planted(error))
    with pytest.raises(found, match=words):
        aotair.build(RECIPES["linear"], tmp_path / "a.aotair")


def test_a_way_of_loading_that_answers_otherwise_fails_the_build(tmp_path, monkeypatch):
    replay = Entry._replay

    def otherwise(self, *args):
        outputs = replay(self, *args)
        return outputs if self._plans._clone_input else [output + 1 for output in outputs]

    monkeypatch.setattr(Entry, "_replay", otherwise)
    with pytest.raises(ProofError, match="answers differently with clone_input=False"):
        aotair.build(RECIPES["linear"], tmp_path / "a.aotair")


# ---- what is asked for -----------------------------------------------------------------------------------------------

ROWS = shaped("n", 4)
PARTS = {"inputs": {"x": ROWS}, "buckets": {"n": [2]}}
DOUBLE = model_of(lambda self, x: x * 2)


@pytest.mark.parametrize(
    ("args", "parts", "got"),
    [
        ((), {}, "neither"),
        ((), {"inputs": {}}, "inputs"),
        ((RECIPES["linear"],), {"model": DOUBLE}, "a recipe, model="),
        ((RECIPES["linear"],), {"buckets": {}}, "a recipe, buckets"),
        (("r.yaml",), {"model": DOUBLE, "inputs": {}}, "a recipe, model=, inputs"),
    ],
)
def test_what_to_build_is_described_once(args, parts, got, tmp_path):
    with pytest.raises(RecipeError, match="described twice, or not at all") as caught:
        aotair.build(*args, out=tmp_path / "a.aotair", **parts)
    assert caught.value.got == got and not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [7, ["r.yaml"], DOUBLE, b"r.yaml"])
def test_what_is_no_recipe_is_refused(given, tmp_path):
    with pytest.raises(RecipeError, match="this is no recipe") as caught:
        aotair.build(given, tmp_path / "a.aotair")
    assert caught.value.got == type(given).__name__ and caught.value.fix == "pass a model as model="


@pytest.mark.parametrize("config", [{}, "config", 3])
def test_a_config_is_a_compiler_config(config, tmp_path):
    with pytest.raises(RecipeError, match="config= is none") as caught:
        aotair.build(RECIPES["linear"], tmp_path / "a.aotair", config=config)
    assert caught.value.expected == "a CompilerConfig"


@pytest.mark.parametrize("kind", ["a dict", "a file", "a Recipe", "a model"])
def test_every_description_is_built(kind, tmp_path):
    out = tmp_path / "a.aotair"
    if kind == "a model":
        built = aotair.build(model=DOUBLE, out=str(out), **PARTS)
        want = torch.full((2, 4), 2.0)
    else:
        recipe = RECIPES["linear"] | {"buckets": {"n": [2]}}
        file = tmp_path / "r.yaml"
        file.write_text(yaml.safe_dump(recipe))
        given = {"a dict": recipe, "a file": str(file), "a Recipe": parse_recipe(recipe)}[kind]
        built = aotair.build(given, out)
        want = load_model(job_of(parse_recipe(recipe)))(torch.ones(2, 4))
    assert built == out
    with aotair.load(built) as model:
        torch.testing.assert_close(model(torch.ones(2, 4)), want)


def test_a_default_device_of_the_callers_changes_nothing(built, tmp_path):
    with torch.device("meta"):
        path = aotair.build(RECIPES["encoder"], tmp_path / "a.aotair")
    for name in ("program.msgpack", "weights.safetensors", "golden.safetensors"):
        assert (path / name).read_bytes() == (built("encoder") / name).read_bytes()


def test_without_a_place_it_is_the_name_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert aotair.build(model=DOUBLE, name="mine", **PARTS) == Path("mine.aotair")
    assert (tmp_path / "mine.aotair" / "program.msgpack").is_file()


def test_a_pass_that_is_given_runs_instead_of_the_recipes(tmp_path):
    ran = []

    def mine(gm, example_inputs, config):
        ran.append(config)

    aotair.build(model=DOUBLE, out=tmp_path / "a.aotair", post_grad_custom_pre_pass=mine, **PARTS)
    assert len(ran) == 1
    config = CompilerConfig()
    config.experimental_config.remove_noop_ops = False
    aotair.build(model=DOUBLE, out=tmp_path / "b.aotair", config=config, post_grad_custom_post_pass=mine, **PARTS)
    assert len(ran) == 2 and ran[1].experimental_config.remove_noop_ops is False
    assert config.post_grad_custom_post_pass is None, "the given one stays as it was"


# ---- the line --------------------------------------------------------------------------------------------------------


class Hears(Listener):
    def __init__(self):
        self.stages, self.buckets = [], []

    def stage(self, name):
        self.stages.append(name)

    def bucket(self, done, total):
        self.buckets.append((self.stages[-1], done, total))


def test_stages_come_in_their_order_and_are_timed(tmp_path):
    hears = Hears()
    recipe = RECIPES["linear"] | {"buckets": {"n": [1, 2]}}
    summary = build_with_summary(recipe, tmp_path / "a.aotair", hears)
    assert hears.stages == ["recipe", "model", "export", "passes", "buckets", "prove", "pack", "check"]
    assert list(summary.seconds) == hears.stages and all(took >= 0 for took in summary.seconds.values())
    assert hears.buckets == [
        (stage, done, total) for stage, total in (("buckets", 2), ("prove", 4)) for done in range(total + 1)
    ]


def test_like_another_there_are_no_passes_and_no_plans(built, tmp_path):
    hears = Hears()
    build_with_summary(RECIPES["linear"], tmp_path / "a.aotair", hears, like=built("linear"))
    assert hears.stages == ["recipe", "model", "export", "like", "prove", "pack", "check"]


def test_a_summary_says_what_the_build_came_to(tmp_path):
    out = tmp_path / "a.aotair"
    summary = build_with_summary(RECIPES["linear"], out, Listener())
    program = read_program(out)
    assert (summary.artifact, summary.buckets, summary.arena) == (str(out), 3, program.arena)
    assert summary.weights == (out / "weights.safetensors").stat().st_size
    assert summary.program == (out / "program.msgpack").stat().st_size
    proofs = [bucket.proof for bucket in program.entry_points[0].buckets]
    assert summary.max_abs_error == max(proof.max_abs_error for proof in proofs)
    assert summary.padding_runs == sum(len(proof.padding) for proof in proofs) > 0
    assert summary.nodes_before >= summary.nodes_after > 0
    assert summary.memory == promised(program).peak and summary.budget is None
    assert (summary.graphs, summary.quantised, summary.packages) == ([], None, {})


def test_a_plan_writes_nothing_and_proves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hears = Hears()
    program = plan(RECIPES["linear"], hears)
    assert hears.stages == ["recipe", "model", "export", "passes", "buckets"] and not list(tmp_path.iterdir())
    assert all(bucket.proof is None for bucket in program.entry_points[0].buckets)
    assert program.origin == Origin() and program.files == ()


def test_an_explanation_needs_no_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hears = Hears()
    found = explain(RECIPES["linear"], hears)
    assert hears.stages == ["recipe", "model", "export", "passes", "buckets"] and not list(tmp_path.iterdir())
    assert found.counts() == {} or all(len(pair) == 2 for pair in found.counts().values())


@pytest.mark.parametrize("call", [plan, explain])
def test_what_is_wrong_is_raised_there_too_with_its_stage(call):
    with pytest.raises(ModelError) as caught:
        call(RECIPES["linear"] | {"model": {"factory": "builtins:dict"}})
    assert caught.value.stage == "model"


@pytest.mark.parametrize(
    ("parts", "stage"),
    [
        ({"model": {"factory": "builtins:dict"}}, "model"),
        ({"inputs": {"x": {"shape": ["n", 5], "dtype": "float32"}}}, "export"),
        ({"outputs": {5: {"clone": True}}}, "buckets"),
    ],
)
def test_an_error_knows_its_stage_and_nothing_is_left(parts, stage, tmp_path):
    hears = Hears()
    with pytest.raises(AotairError) as caught:
        build_with_summary(RECIPES["linear"] | parts, tmp_path / "a.aotair", hears)
    assert caught.value.stage == stage == hears.stages[-1] and not list(tmp_path.iterdir())


def test_two_calls_that_differ_are_explained_by_the_export_where_it_knows_more(tmp_path):
    """A branch on values makes a model that fails with some values: the export says which line."""

    def forward(self, x):
        if x.sum() > 0:
            raise ValueError("positive")
        return x * 2

    with pytest.raises(AotairError, match=r"test_builder.py:\d+, in forward"):
        aotair.build(model=model_of(forward), out=tmp_path / "a.aotair", **PARTS)


def test_inputs_are_in_the_order_of_the_methods_arguments(tmp_path):
    model = model_of(lambda self, b, a: b - a)
    built = aotair.build(model=model, out=tmp_path / "a.aotair", inputs={"a": ROWS, "b": ROWS}, buckets={"n": [2]})
    (entry,) = read_program(built).entry_points
    assert [item.name for item in entry.inputs] == ["b", "a"]


def test_graphs_are_dumped_by_their_labels(tmp_path):
    config = CompilerConfig()
    config.debug.graph_dump.type, config.debug.graph_dump.path = "txt", str(tmp_path / "dump")
    model = model_of(lambda self, x: x * 2 if x.shape[0] > 3 else x - 1)
    inputs = {"inputs": {"x": ROWS}, "buckets": {"n": [2, 4]}}
    aotair.build(model=model, out=tmp_path / "a.aotair", config=config, **inputs)
    names = {file.name for file in (tmp_path / "dump").rglob("*") if file.is_file()}
    assert any("export" in name for name in names)


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        (["forward"], [""]),
        (["a", "b"], ["a", "b"]),
        (["a", "b", "a", "a"], ["a 1", "b", "a 2", "a 3"]),
        (["forward", "forward"], ["forward 1", "forward 2"]),
    ],
)
def test_graphs_are_called_by_their_entry_points_and_numbered_where_these_have_several(entries, wanted):
    nothing = Exported(torch.fx.GraphModule({}, torch.fx.Graph()), {}, {}, {}, (), ("tuple",))
    assert labels([replace(nothing, entry=entry) for entry in entries]) == wanted


@pytest.mark.parametrize(
    ("kind", "path", "folder"),
    [(None, None, None), ("txt", None, Path(".")), ("py", "there", Path("there")), (None, "there", Path("there"))],
)
def test_graphs_are_dumped_where_the_recipe_says(kind, path, folder, monkeypatch):
    seen = []
    monkeypatch.setattr(one_mesh, "Observer", lambda *args, **listening: seen.append((*args, listening)))
    job = job_of(parse_recipe(RECIPES["linear"] | {"config": {"debug": {"graph_dump": {"type": kind, "path": path}}}}))
    _observer(job, 3, None, True)
    assert seen == [(job.target, folder, 3, kind == "py", True, {"listener": None})]


def test_a_stage_that_fails_is_not_timed():
    clock = _Clock(Listener())
    with clock.stage("good"):
        pass
    with pytest.raises(RecipeError) as caught, clock.stage("bad"):
        raise RecipeError("no")
    with pytest.raises(ValueError), clock.stage("worse"):
        raise ValueError
    assert list(clock.seconds) == ["good"] and caught.value.stage == "bad"


# ---- why a model is refused ------------------------------------------------------------------------------------------


def refusal(monkeypatch, forward, at, *, buckets=(2, 4)) -> Exception:
    """What comes of a model whose calls fail, where one graph raises `forward`, and one of a bucket `at`."""

    def raising(error):
        def raise_(*_):
            raise error

        return raise_

    monkeypatch.setattr(builder, "export", raising(forward) if forward is not None else lambda *_: None)
    monkeypatch.setattr(builder, "export_at", raising(at) if at is not None else lambda *_: None)
    job = job_for(DOUBLE, {"x": ROWS}, {"n": list(buckets)})
    try:
        _export_for_its_reason(DOUBLE, job.entries[0])
    except AotairError as error:
        return error


SIZES, LINE, UNSUPPORTED = SizesError("sizes"), ExportError("a line"), UnsupportedError("an op")


@pytest.mark.parametrize(
    ("one", "at", "found"),
    [
        (None, None, None),  # nothing is known
        (LINE, None, LINE),
        (UNSUPPORTED, None, UNSUPPORTED),
        (SIZES, None, None),  # another graph for each size serves
        (SIZES, LINE, SIZES),
        (SIZES, SizesError("others"), SIZES),
        (SIZES, UNSUPPORTED, UNSUPPORTED),
    ],
)
def test_the_reason_is_the_exports_where_it_has_one(one, at, found, monkeypatch):
    assert refusal(monkeypatch, one, at) is found


# ---- what is checked at the end --------------------------------------------------------------------------------------


def test_what_is_over_the_budget_is_refused_before_it_is_proved(tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "prove", lambda *_: pytest.fail("the proof"))
    with pytest.raises(MemoryBudgetError):
        aotair.build(model=DOUBLE, out=tmp_path / "a.aotair", target={"memory_budget": 1}, **PARTS)
    assert not list(tmp_path.iterdir())


def test_each_further_graph_says_why_it_is_there():
    class Branch(torch.nn.Module):
        def forward(self, x):
            return x * 2 if x.shape[0] > 3 else x - 1

    job = job_for(Branch(), {"x": ROWS}, {"n": [2, 4]})
    graphs = _exported(Branch(), job, Observer(job.target))
    assert [graph.buckets for graph in graphs] == [((4,),), ((2,),)] and sum(
        len(one.module.graph.nodes) for one in graphs
    ) > 4
    assert [bool(graph.why) for graph in graphs] == [False, True]


def test_the_origin_is_that_of_the_graphs_before_any_pass(tmp_path):
    recipe = RECIPES["linear"] | {"buckets": {"n": [2]}}
    found = read_program(aotair.build(recipe, tmp_path / "a.aotair")).origin
    job = job_of(parse_recipe(recipe))
    model = load_model(job)
    job = _checked(model, job)
    graphs = _exported(model, job, Observer(job.target))
    assert found == origin_of(graphs, job, Bisection()) != Origin()


def test_a_bisection_is_another_origin(tmp_path):
    recipe = RECIPES["linear"] | {"buckets": {"n": [2]}}
    summary = build_with_summary(recipe, tmp_path / "a.aotair", Listener(), Bisection(max_rewrites=0))
    assert summary.rewrites == {} or not any(summary.rewrites.values())
    aotair.build(recipe, tmp_path / "b.aotair")
    one, other = (read_program(tmp_path / name).origin for name in ("a.aotair", "b.aotair"))
    assert one.recipe != other.recipe and one.graph == other.graph
