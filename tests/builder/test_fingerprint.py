"""What a program follows from: equal for what may differ between two checkpoints, and another for all else."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import RECIPES
from exports import exported

import aotair
from aotair import fusion
from aotair.export.export import export
from aotair.export.exported import Exported, NamedTensor
from aotair.fingerprint import _file_of, _variant, origin_of
from aotair.fusion.rule import Variant
from aotair.model.load import load_model
from aotair.model.tied_names import Names
from aotair.recipe.job import Job, job_of
from aotair.recipe.read import parse_recipe
from aotair_runtime.format.schema import Origin


@functools.cache
def linear() -> tuple[Job, Exported]:
    return exported("linear")


def job(**parts) -> Job:
    return job_of(parse_recipe(RECIPES["linear"] | parts))


def origin(job: Job | None = None, graph: Exported | None = None, limits: object = None) -> Origin:
    return origin_of([graph or linear()[1]], job or linear()[0], limits)


def differing(one: Origin, other: Origin) -> set[str]:
    return {field for field in ("versions", "recipe", "code", "graph") if getattr(one, field) != getattr(other, field)}


def test_it_is_the_same_for_the_same():
    first, again = origin(), origin_of([export(load_model(job()), job().entries[0])], job(), None)
    assert first == again and first != Origin()
    assert first.versions == f"torch {torch.__version__}, aotair {aotair.__version__}"
    assert all(len(digest) == 64 for digest in (first.recipe, first.code, first.graph))


# ---- the recipe ------------------------------------------------------------------------------------------------------

MODEL = RECIPES["linear"]["model"]


@pytest.mark.parametrize(
    "parts",
    [
        {"name": "another"},
        {"model": MODEL | {"weights": "elsewhere.safetensors"}},
        {"verify": {"seed": 7}},
        {"config": {"debug": {"graph_dump": {"type": "py"}}}},
    ],
)
def test_what_may_differ_between_two_checkpoints_does_not_count(parts):
    assert origin(job(**parts)) == origin()


@pytest.mark.parametrize(
    "parts",
    [
        {"buckets": {"n": [1, 4]}},
        {"verify": {"atol": 0.5}},
        {"target": {"device": "cuda"}},
        {"target": {"memory_budget": "1GiB"}},
        {"config": {"experimental_config": {"remove_noop_ops": False}}},
        {"config": {"debug": {"aclgraph": {"clone_input": False}}}},
        {"model": MODEL | {"share_equal_weights": True}},
        {"inputs": {"x": RECIPES["linear"]["inputs"]["x"] | {"pad": 0}}},
    ],
)
def test_whatever_else_the_recipe_says_counts(parts):
    assert differing(origin(job(**parts)), origin()) == {"recipe"}


def test_smallest_sizes_that_were_found_count():
    job_, _ = linear()
    other = job_.with_entry(job_.entries[0].with_least({"n": 2}))
    assert differing(origin(other), origin(job_)) == {"recipe"}


def test_what_else_keeps_passes_from_running_counts():
    assert differing(origin(limits=("stop", 3)), origin(limits=("stop", 4))) == {"recipe"}


# ---- the graph -------------------------------------------------------------------------------------------------------


def changed(**parts) -> Exported:
    return replace(linear()[1], **parts)


def with_weight(change) -> Exported:
    """The graph with another first constant."""
    one = linear()[1]
    place, item = next(iter(one.constants.items()))
    return changed(constants={**one.constants, place: change(item)})


def test_values_of_weights_do_not_count():
    assert origin(graph=with_weight(lambda item: NamedTensor(item.name, item.tensor * 2))) == origin()


@pytest.mark.parametrize(
    "graph",
    [
        lambda: with_weight(lambda item: NamedTensor("another", item.tensor)),
        lambda: with_weight(lambda item: NamedTensor(item.name, item.tensor[:1])),
        lambda: with_weight(lambda item: NamedTensor(item.name, item.tensor.t().contiguous().t())),
        lambda: changed(names=Names()),
        lambda: changed(constants={}, states=linear()[1].constants),
        lambda: changed(inputs={"y": "x"}),
        lambda: changed(outputs=((1, 3),)),
        lambda: changed(structure=("list", ("tensor", 0))),
        lambda: changed(defaults=(("k", 1),)),
    ],
)
def test_names_layouts_kinds_and_the_interface_count(graph):
    assert differing(origin(graph=graph()), origin()) == {"graph"}


def test_what_the_graph_computes_counts():
    other = export(load_model(job()), job().entries[0])
    node = next(node for node in other.module.graph.nodes if node.op == "call_function")
    node.target = torch.ops.aten.matmul.default
    assert differing(origin(graph=other), origin()) == {"graph"}


def test_graphs_count_in_their_order():
    a, b = linear()[1], changed(outputs=((1, 3),))
    assert origin_of([a, b], linear()[0], None).graph != origin_of([b, a], linear()[0], None).graph


# ---- the user's code -------------------------------------------------------------------------------------------------


def with_pass(tmp_path: Path, text: str, name: str = "nothing") -> Job:
    file = tmp_path / "passes.py"
    file.write_text(text)
    return job(config={"post_grad_custom_pre_pass": f"{file}:{name}"})


def test_the_file_of_a_pass_counts_and_its_place_does_too(tmp_path: Path):
    text = "def nothing(gm, example_inputs, config):\n    pass\ndef other(gm, example_inputs, config):\n    pass\n"
    first = origin(with_pass(tmp_path, text))
    assert "code" in differing(first, origin())
    assert "code" in differing(origin(with_pass(tmp_path, text + "# more\n")), first)
    assert "code" in differing(origin(with_pass(tmp_path, text, "other")), first)
    assert origin(with_pass(tmp_path, text)) == first


@pytest.mark.parametrize("given", ["made", "an object"])
def test_what_is_not_known_is_like_nothing_else(given):
    if given == "made":
        made: dict = {"__name__": "made"}
        exec("def nothing(gm, example_inputs, config):\n    pass", made)
        config = job().config.model_copy(update={"post_grad_custom_pre_pass": made["nothing"]})
        assert origin(replace(job(), config=config)) == Origin()
    else:
        assert origin(replace(job(), given=torch.nn.Linear(4, 3))) == Origin()


class Callable_:
    def __call__(self, *_):
        pass

    def method(self, *_):
        pass


def function(*_):
    pass


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (function, "function"),
        (functools.partial(function, 1), "function"),
        (functools.wraps(function)(lambda *_: None), "function"),
        (Callable_(), "Callable_"),
        (Callable_, "Callable_"),
        (Callable_().method, "Callable_.method"),
    ],
)
def test_each_kind_of_function_is_told_by_its_name_and_file(given, name):
    found, digest = _file_of(given).split(" ")
    assert found == name and digest == _file_of(function).split(" ")[1]


def test_a_builtin_has_no_file():
    with pytest.raises(TypeError):
        _file_of(len)


def _register(search, replace_) -> fusion.Rule:
    def rule():
        aotair.register_replacement(search_fn=search, replace_fn=replace_, example_inputs=[torch.zeros(3)])

    (made,) = fusion.rules_of(rule)
    return made


def search(x):
    return torch.relu(x) * 2


def does(x):
    return torch.relu(x * 2)


def does_otherwise(x):
    return torch.relu(x + x)


def test_rules_count_by_what_they_look_for_and_what_they_do():
    plain, one, two = job(), _register(search, does), _register(search, does_otherwise)
    found = [origin(replace(plain, rules=rules)) for rules in ((), (one,), (two,), (one, two))]
    assert len({item.code for item in found}) == 4
    assert origin(replace(plain, rules=(_register(search, does),))) == found[1]


def test_aotairs_own_rules_are_told_by_their_functions():
    rule = fusion.RULES[0]
    for variant in rule.variants:
        assert len(_variant(variant).split()) >= 4


def test_a_kind_of_rule_that_nobody_knows_has_no_source():
    with pytest.raises(TypeError, match="a rule's variant is a Variant"):
        _variant(Variant())
