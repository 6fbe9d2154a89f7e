"""A user's own rules: TorchAir's signature and meaning, checked before they are trusted, refused by name."""

import functools
import subprocess
import sys

import near
import pytest
import torch
from cases import RECIPES, ROOT

import aotair
from aotair import fusion
from aotair.builder import build_with_summary, explain
from aotair.errors import GraphError, ModelError, RecipeError
from aotair.fusion import register
from aotair.fusion.matcher import CallFunction, KeywordArg
from aotair.passes import fuse
from aotair.summary import Listener
from aotair.target.target import Target
from aotair_runtime.artifact.open import read_program

TABLE = torch.ones(4)
LINEAR = RECIPES["linear"]  # relu(x @ weight.T + bias) and the like, for the CPU
FILE = str(ROOT / "tests" / "rules.py")


@pytest.fixture(autouse=True)
def only_here(monkeypatch):
    monkeypatch.setattr(register, "_rules", [])
    monkeypatch.setattr(register, "_of_function", {})


def examples() -> list[torch.Tensor]:
    return [torch.randn(2, 4), torch.randn(3, 4), torch.randn(3)]


def search(x, weight, bias):
    return torch.nn.functional.linear(x, weight, bias)


def product(x, weight, bias):
    return torch.nn.functional.linear(x, weight) + bias


def wrong(x, weight, bias):
    return torch.nn.functional.linear(x, weight, bias) * 1.01


def other_dtype(x, weight, bias):
    return torch.nn.functional.linear(x, weight, bias).double()


def build(tmp_path, **parts):
    return build_with_summary(LINEAR | parts, tmp_path / "x.aotair", Listener())


def test_a_rule_of_a_user_fires_and_the_build_proves_it(tmp_path):
    aotair.register_replacement(search, product, examples())
    name = f"{__name__}.search"
    summary = build(tmp_path, config={"experimental_config": {"fold_norms": False}})  # which would add the bias again
    assert summary.rewrites[name] == 1
    ops = {op.name for op in read_program(tmp_path / "x.aotair").ops}
    assert "aten::addmm.out" not in ops and "aten::mm.out" in ops
    found = explain(LINEAR)
    assert "1 done, 0 left alone" in found.text(name) and "models.py:" in found.text(name)
    assert build(tmp_path).rewrites[name] == 1, "a second build in the process is like the first"


def test_registering_again_does_nothing_and_another_of_the_same_pattern_is_refused():
    aotair.register_replacement(search, product, examples())
    aotair.register_replacement(search, product, examples())
    assert len(fusion.registered()) == 1
    with pytest.raises(GraphError, match="has the pattern of"):
        aotair.register_replacement(search, wrong, examples())
    aotair.register_replacement(search, wrong, examples(), skip_duplicates=True)
    assert len(fusion.registered()) == 1


def test_a_rule_that_changes_numbers_is_refused_by_name(tmp_path):
    aotair.register_replacement(search, wrong, examples())
    with pytest.raises(GraphError) as caught:
        build(tmp_path)
    assert f"the fusion rule {__name__}.search changes numbers, or cannot be checked" in str(caught.value)
    assert f"disabled_fusion_rules: [{__name__}.search]" in str(caught.value) and "models.py" in str(caught.value)
    off = {"config": {"experimental_config": {"disabled_fusion_rules": [f"{__name__}.search"]}}}
    assert f"{__name__}.search" not in build(tmp_path, **off).rewrites
    unchecked = {"config": {"experimental_config": {"verify_rules": False}}}
    with pytest.raises(aotair.AotairError, match="not the original model's"):
        build(tmp_path, **unchecked)
    assert not build(tmp_path, config={"experimental_config": {"pattern_fusion_pass": False}}).misses


@pytest.mark.parametrize(
    ("search_fn", "replace_fn", "inputs"),
    [
        (lambda x: x.relu().log(), lambda x: (5 * x).relu().log(), [torch.randn(4)]),
        (lambda x: x.log(), lambda x: (5 * x).log(), [torch.randn(4)]),
        (lambda x: x / (x * 0), lambda x: -x / (x * 0), [torch.randn(4)]),
        (lambda x: x.relu() * 2, lambda x: x.relu_().mul_(2), [torch.randn(4)]),
        (lambda x: x + 1, lambda x: x + TABLE, [torch.randn(4)]),
    ],
)
def test_infinities_hide_no_difference_and_a_replacement_keeps_to_its_arguments(search_fn, replace_fn, inputs):
    with pytest.raises(GraphError, match=r"changes numbers, or cannot be checked|cannot be registered"):
        fire(search_fn, replace_fn, inputs)


def fire(search_fn, replace_fn, inputs: list, function=None, **options) -> int:
    """How often a rule fires in the graph of `function` (of `search_fn` itself, where none is given)."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    aotair.register_replacement(search_fn, replace_fn, inputs, **options)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(value) for value in inputs]
    count = 0
    graph = fusion.matcher.fwd_only(function or search_fn, fakes)
    for rule in fusion.registered():
        edits = near.edits_of(rule.name)
        fuse.run(graph, edits, rule)
        count += edits.count
    return count


def test_indices_are_legal_where_a_table_has_one_row():
    inputs = [torch.zeros(3, dtype=torch.int64), torch.randn(1, 4)]
    embed = lambda i, w: torch.nn.functional.embedding(i, w) * 2  # noqa: E731
    assert fire(embed, lambda i, w: torch.nn.functional.embedding(i, w * 2), inputs) == 1


def test_rules_that_differ_in_a_constant_are_different_rules():
    def registered_with(factor):
        def pattern(x):
            return x.relu() * factor

        def replacement(x):
            return (x * factor).relu()

        aotair.register_replacement(pattern, replacement, [torch.randn(4)])

    for factor in (2.0, 4.0, 2.0):
        registered_with(factor)
    assert len(fusion.registered()) == 2, "the third is the first again"
    assert [rule.name.partition("#")[2] for rule in fusion.registered()] == ["", "2"]
    double = lambda x: (x.relu() * 2.0, (x + 1).relu() * 4.0)  # noqa: E731
    assert fire(lambda x: x.tanh().tanh(), lambda x: x.tanh().tanh(), [torch.randn(4)], double) == 2


def test_what_cannot_be_a_rule_is_said():
    one = [torch.randn(4)]
    for search_fn, replace_fn, inputs in (
        (lambda x: x, lambda x: x, one),
        (lambda x: (x.relu(), x), lambda x: (x.relu(), x), one),
        (lambda x, y: x.relu(), lambda x, y: x.relu() * 1, one * 2),
    ):
        with pytest.raises(GraphError, match="fusion rule"):
            fire(search_fn, replace_fn, inputs, lambda x, y=None: x.relu())
    scaled = functools.partial(lambda by, x: x.relu() * by, 3.0)
    assert fire(scaled, lambda x: (x * 3.0).relu(), one) == 1

    def check(match):
        raise KeyError("nothing")

    with pytest.raises(GraphError, match=r"the extra_check of the fusion rule .* failed: KeyError"):
        fire(lambda x: x.sin().cos(), lambda x: x.sin().cos() * 1, one, extra_check=check)


def test_a_replacement_of_another_dtype_or_shape_is_left(tmp_path):
    aotair.register_replacement(search, other_dtype, examples())
    assert build(tmp_path).misses == {f"{__name__}.search": 1}
    assert "gives float64 where linear is float32" in explain(LINEAR).text(f"{__name__}.search")


def test_a_replacement_that_is_no_tensor_is_left(tmp_path):
    aotair.register_replacement(search, lambda x, weight, bias: 3.0, examples())
    assert build(tmp_path).misses == {f"{__name__}.search": 1}
    assert "gives 3.0 where linear is a tensor" in explain(LINEAR).text(f"{__name__}.search")


def test_an_extra_check_decides(tmp_path):
    seen = []

    def check(match):
        seen.append(match.kwargs["x"].meta["val"].shape[-1])
        return False

    aotair.register_replacement(search, product, examples(), extra_check=check)
    assert not build(tmp_path).rewrites.get(f"{__name__}.search") and seen == [4]


def test_a_pattern_written_out_and_a_scalar(tmp_path):
    def scaled(x, alpha):
        return torch.nn.functional.leaky_relu(x, alpha)

    def where(x, alpha):
        return torch.where(x > 0, x, x * alpha)

    class Leaky(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.leaky_relu(x, 0.25)

    graph = fusion.matcher.fwd_only(Leaky(), [torch.randn(3)])
    (op,) = (node.target for node in graph.graph.nodes if node.op == "call_function")
    pattern = CallFunction(op, KeywordArg("x"), KeywordArg("alpha"))
    aotair.register_replacement(
        scaled, where, [torch.randn(3)], search_fn_pattern=pattern, scalar_workaround={"alpha": 0.125}
    )
    aotair.register_replacement(
        scaled, where, [torch.randn(3)], scalar_workaround={"alpha": 0.125}, skip_duplicates=True
    )
    import near
    from torch._subclasses.fake_tensor import FakeTensorMode

    from aotair.passes import fuse

    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.randn(3))
    for rule in fusion.registered():
        graph = fusion.matcher.fwd_only(Leaky(), [x])
        edits = near.edits_of(rule.name)
        fuse.run(graph, edits, rule)
        assert edits.count == 1
        value = torch.tensor([-1.0, 2.0, -4.0])
        assert torch.equal(graph(value), Leaky()(value))


def test_rules_named_in_the_recipe_hold_for_it_alone(tmp_path):
    summary = build(tmp_path, fusion=[f"{FILE}:linear_as_product"])
    assert sum("linear" in name for name in summary.rewrites) == 1
    assert not fusion.registered()
    assert not any("linear" in name for name in build(tmp_path).rewrites)


def test_what_is_wrong_with_a_recipes_rules_is_said(tmp_path):
    with pytest.raises(ModelError, match=r"fusion\[0\]: cannot import"):
        build(tmp_path, fusion=["nowhere:rules"])
    with pytest.raises(ModelError, match="registered no rule"):
        build(tmp_path, fusion=[f"{FILE}:nothing"])
    with pytest.raises(ModelError, match="failed: ZeroDivisionError"):
        build(tmp_path, fusion=[f"{FILE}:broken"])
    with pytest.raises(RecipeError, match="fusion"):
        build(tmp_path, fusion=["no function"])
    unknown = {"config": {"experimental_config": {"disabled_fusion_rules": ["nobody"]}}}
    with pytest.raises(GraphError, match="there is no fusion rule 'nobody'"):
        build(tmp_path, **unknown)


def test_the_signature_is_torchairs():
    """Name by name, as `torchair.register_replacement` has it; every name after the third has a default."""
    import inspect

    names = inspect.signature(aotair.register_replacement).parameters
    assert list(names) == [
        "search_fn", "replace_fn", "example_inputs", "trace_fn", "extra_check", "search_fn_pattern",
        "scalar_workaround", "skip_duplicates",
    ]  # fmt: skip
    assert all(p.default is not p.empty for p in list(names.values())[3:])


def test_each_device_has_its_own_rules_in_the_pipeline():
    from aotair.passes.pipeline import pipeline
    from aotair.recipe.config import CompilerConfig

    known = [rule.name for rule in fusion.RULES]
    for kind, want in (
        ("cpu", ["group_attention"]),
        ("cuda", []),
        ("npu", [n for n in known if n != "group_attention"]),
    ):
        steps = [step.name for step in pipeline(CompilerConfig(), Target(kind))]
        assert [name for name in steps if name in known] == want


# The command with each of these options after the other, and how it ended.
EXPLAINED = """
import sys
from aotair.cli import main
for options in ([], ["--rule", "nobody"], ["--rule", "remove_noop_ops", "--json"]):
    try:
        main(["explain", sys.argv[1], *options])
    except SystemExit as ended:
        print(f"<ended with {ended.code or 0}>")
"""


def test_explain_on_the_command_line(tmp_path):
    import yaml

    file = tmp_path / "r.yaml"
    file.write_text(yaml.safe_dump(LINEAR | {"fusion": [f"{FILE}:linear_as_product"]}))
    command = [sys.executable, "-c", EXPLAINED, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    plain, unknown, one = done.stdout.split(">\n")[:3]
    assert "1 done, 0 left alone" in plain and "did not run" in plain and plain.endswith("<ended with 0")
    assert unknown == "<ended with 1" and "there is no fusion rule or pass 'nobody'" in done.stderr
    assert '"remove_noop_ops"' in one and one.endswith("<ended with 0")
