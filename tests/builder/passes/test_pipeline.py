"""The pipeline: its order, what switches passes off, where it stops, and rules over composites that are apart."""

import copy
import functools
import logging
from dataclasses import replace

import pytest
import torch
from cases import RECIPES, recipe
from graphs import answers, trace
from torch._inductor.pattern_matcher import fwd_only
from torch.nn import functional as F

import aotair
from aotair import fusion
from aotair.builder import build_with_summary, explain
from aotair.errors import GraphError
from aotair.export.export import export
from aotair.fusion import register
from aotair.graph.show import show
from aotair.model.load import load_model
from aotair.passes.observer import Observer
from aotair.passes.pipeline import BUCKET_PIPELINE, REINPLACE, apply, apply_to_bucket, pipeline
from aotair.recipe.config import CompilerConfig
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.summary import Bisection, Listener
from aotair.target.target import Target
from aotair_runtime.artifact.open import read_program
from aotair_runtime.format.schema import Origin

LINEAR, ENCODER = RECIPES["linear"], RECIPES["encoder"]


@pytest.fixture(autouse=True)
def only_here(monkeypatch):
    monkeypatch.setattr(register, "_rules", [])


def r(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def program(tmp_path, data, **options):
    return read_program(aotair.build(data, tmp_path / "x.aotair", **options))


def _product(x, w, b):
    return torch.addmm(b, x, w)


def _sum(x, w, b):
    return torch.mm(x, w) + b


def _layer(x, w, b):
    return F.linear(x, w, b)


def _layer_by_parts(x, w, b):
    return x @ w.T + b


def test_patterns_on_what_torchair_shows_match(tmp_path):
    aotair.register_replacement(_product, _sum, [r(2, 4), r(4, 3), r(3)])
    summary = build_with_summary(LINEAR, tmp_path / "x.aotair", Listener())
    assert summary.rewrites[f"{__name__}._product"] == 1
    assert "1 done, 0 left alone" in explain(LINEAR).text(f"{__name__}._product")
    whole = {"config": {"experimental_config": {"composites": "whole"}}}
    assert f"{__name__}._product" not in build_with_summary(LINEAR | whole, tmp_path / "x.aotair", Listener()).rewrites


@pytest.mark.parametrize("trace_fn", [None, fwd_only], ids=["our tracing", "torch's"])
def test_a_pattern_matches_however_it_was_traced(tmp_path, trace_fn):
    options = {} if trace_fn is None else {"trace_fn": trace_fn}
    aotair.register_replacement(_layer, _layer_by_parts, [r(2, 4), r(3, 4), r(3)], **options)
    summary = build_with_summary(LINEAR, tmp_path / "x.aotair", Listener())
    assert summary.rewrites.get(f"{__name__}._layer") == 1


def test_a_rule_that_fires_nowhere_changes_no_byte(tmp_path):
    plain = replace(program(tmp_path, ENCODER), origin=Origin())
    aotair.register_replacement(lambda x, w: (x @ w).cos(), lambda x, w: (x @ w).cos() * 1, [r(2, 4), r(4, 3)])
    assert replace(program(tmp_path, ENCODER), origin=Origin()) == plain


def test_what_a_rule_needs_and_nothing_calls_is_said(tmp_path):
    cosine = lambda x, w, b: torch.addmm(b, x, w).cos()  # noqa: E731
    aotair.register_replacement(cosine, lambda x, w, b: (x @ w + b).cos(), [r(2, 4), r(4, 3), r(3)])
    (rule,) = register.registered()
    said = explain(ENCODER).text(rule.name)
    assert "no x aten.cos.default at all: the rule needs it, and nothing in the graph calls it" in said
    assert "addmm" not in said, "products are there where linear layers are apart"


JOINED = recipe("Joined", {"x": {"shape": ["n", 64], "dtype": "float32"}}, {"n": [4, 8]})


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


@functools.cache
def exported_encoder() -> torch.fx.GraphModule:
    parsed = job_of(parse_recipe(ENCODER))
    return export(load_model(parsed), parsed.entries[0]).module


def ran(stop_after) -> list[str]:
    """The names of the passes that ran over a graph of the encoder, up to where it stops."""
    observer = Observer(Target("cpu"))
    apply(copy.deepcopy(exported_encoder()), job_of(parse_recipe(ENCODER)).config, observer, stop_after)
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


def test_what_runs_over_buckets_can_be_named(tmp_path):
    with pytest.raises(GraphError, match="no pass 'cats' to stop after") as caught:
        build(tmp_path, "cats")
    assert all(step.name in str(caught.value) for step in BUCKET_PIPELINE)


def exported(name: str):
    recipe = job_of(parse_recipe(RECIPES[name]))
    return recipe, export(load_model(recipe), recipe.entries[0])


def test_passes_change_nothing_the_second_time():
    for name in ("encoder", "cache", "views"):
        recipe, result = exported(name)
        apply(result.module, recipe.config, Observer(Target("cpu")))
        once = show(result.module)
        observer = Observer(Target("cpu"))
        apply(result.module, recipe.config, observer)
        assert [record.rewrites for record in observer.records] == [0] * len(observer.records)
        assert show(result.module) == once


def test_an_option_switches_a_pass_off():
    recipe, result = exported("encoder")
    recipe.config.experimental_config.remove_noop_ops = False
    observer = Observer(Target("cpu"))
    try:
        apply(result.module, recipe.config, observer)
        assert "remove_noop_ops" not in [record.name for record in observer.records]
    finally:
        recipe.config.experimental_config.remove_noop_ops = True


# ---- which passes there are, and in which order ----------------------------------------------------------------------


def config(**options) -> CompilerConfig:
    made = CompilerConfig()
    for name, value in options.items():
        setattr(made.experimental_config, name, value)
    return made


def names(made: CompilerConfig, target: str = "cpu") -> list[str]:
    return [step.name for step in pipeline(made, Target(target)) if step.enabled(made)]


def test_rules_are_for_their_devices_and_stand_between_what_prepares_and_what_finishes():
    ours = {kind: [n for n in names(CompilerConfig(), kind) if n in RULES] for kind in ("cpu", "cuda", "npu")}
    assert ours["cpu"] == ["group_attention"] and ours["cuda"] == []
    assert ours["npu"] == [name for name in RULES if name != "group_attention"]
    found = names(CompilerConfig(), "npu")
    assert found.index("canonicalise") < found.index(RULES[0]) < found.index("streams")


RULES = [rule.name for rule in fusion.RULES]


@pytest.mark.parametrize(
    ("option", "gone"),
    [
        ({"remove_noop_ops": False}, {"remove_noop_ops"}),
        ({"merge_duplicates": False}, {"merge_duplicates"}),
        ({"fold_norms": False}, {"fold_norms"}),
        ({"fold_constants": False}, {"fold_norms", "merge_products", "fold_constants"}),
        ({"merge_products": False}, {"merge_products"}),
        ({"pattern_fusion_pass": False}, set(RULES) - {"group_attention"}),
        ({"disabled_fusion_rules": ["lift_swiglu", "lift_rotary"]}, {"lift_swiglu", "lift_rotary"}),
    ],
)
def test_an_option_takes_away_its_passes_and_no_others(option, gone):
    assert set(names(CompilerConfig(), "npu")) - set(names(config(**option), "npu")) == gone


@pytest.mark.parametrize(
    ("option", "gone"),
    [
        ("disable_reinplace_inplaceable_ops_pass", {"reinplace_inplaceable_ops"}),
        ("disable_reinplace_input_mutated_ops_pass", {"reinplace_input_mutated_ops", "merge_copies"}),
    ],
)
def test_reinplacing_is_switched_off_by_torchairs_names(option, gone):
    made = CompilerConfig()
    setattr(made.debug.aclgraph, option, True)
    assert set(names(CompilerConfig())) - set(names(made)) == gone


@pytest.mark.parametrize("fused", [True, False])
def test_a_rule_that_there_is_not_cannot_be_disabled(fused):
    made = config(disabled_fusion_rules=["lift_nothing"], pattern_fusion_pass=fused)
    with pytest.raises(GraphError, match="there is no fusion rule 'lift_nothing' to disable") as caught:
        pipeline(made, Target("cpu"))
    assert caught.value.expected == ", ".join(sorted(RULES))


def test_a_users_rule_can_be_disabled_by_its_name():
    aotair.register_replacement(_layer, _layer_by_parts, [r(2, 4), r(3, 4), r(3)])
    (own,) = register.registered()
    assert names(CompilerConfig()).count(own.name) == 2
    assert "take_composites_apart" in names(CompilerConfig())
    made = config(disabled_fusion_rules=[own.name])
    assert own.name not in names(made) and "take_composites_apart" not in names(made)
    assert names(config(composites="whole")).count(own.name) == 1


def test_passes_run_again_until_none_of_them_finds_anything():
    def function(x, row):
        torch.ops.aten.copy_.default(x, x.add(1).mul(2))
        return (row + 1,)

    module, seen = trace(function, torch.ones(2, 3), torch.ones(3)), Observer(Target("cpu"))
    want = answers(module, (torch.ones(2, 3), torch.ones(3)))
    apply(module, CompilerConfig(), seen)
    ran = [record.name for record in seen.records]
    assert ran.count("reinplace_input_mutated_ops") >= 2 and ran.count("streams") == 1
    last = seen.records[-len(REINPLACE) :]
    assert [(record.name, record.rewrites) for record in last] == [(step.name, 0) for step in REINPLACE]
    assert all(map(torch.equal, answers(module, (torch.ones(2, 3), torch.ones(3))), want))
