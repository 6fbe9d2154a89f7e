"""Several entry points in one artifact: what they share, what the recipe may say, and state that nobody registered."""

from pathlib import Path

import models
import pytest
import safetensors.torch
import torch
from cases import MODELS, NOTEBOOK, ROWS, recipe

import aotair
from aotair.errors import ModelError, ProofError, RecipeError, UnsupportedError
from aotair.recipe.read import parse_recipe
from aotair_runtime.artifact.open import read_program
from aotair_runtime.errors import ArgumentError


@pytest.fixture(scope="module")
def notebook(tmp_path_factory) -> Path:
    return aotair.build(NOTEBOOK, tmp_path_factory.mktemp("entries") / "notebook.aotair")


def changed(**fields: object) -> dict:
    return NOTEBOOK | fields


def test_entry_points_share_weights_state_and_arena(notebook):
    program = read_program(notebook)
    assert [entry.name for entry in program.entry_points] == ["write", "read"]
    assert [state.name for state in program.state] == ["pages"]
    assert program.arena == max(bucket.height for entry in program.entry_points for bucket in entry.buckets)
    weights = safetensors.torch.load_file(notebook / "weights.safetensors")
    assert sorted(weights) == ["linear.weight", "pages"], "each once"


def test_what_one_writes_the_other_reads(notebook):
    original = models.Notebook()
    with aotair.load(notebook, enable_output_clone=True) as model:
        x, rows = torch.randn(4, 4), torch.tensor([5, 0, 2, 7])
        torch.testing.assert_close(model.write(x, rows), original.write(x, rows))
        torch.testing.assert_close(model.state["pages"], original.pages)
        query = torch.randn(5, 4)
        torch.testing.assert_close(model.read(query), original.read(query))
        model.reset_state()
        assert not model.state["pages"].any() and not model.read(query).any()
        assert set(model.buckets) == {"write", "read"} and model.stats().calls == 3
        with pytest.raises(ArgumentError, match="one of write, read"):
            model(query)


def test_every_entry_point_is_proved_with_its_states_not_at_zero(tmp_path):
    """From zeros the reader's answer is zero whatever the program does with the query."""
    config = {
        "post_grad_custom_post_pass": f"{MODELS}:forget_the_query",  # means the reader's product, no linear layer's
        "experimental_config": {"composites": "whole"},
    }
    with pytest.raises(ProofError, match=r"entry_points\.read.*from random states"):
        aotair.build(changed(config=config), tmp_path / "a.aotair")


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"inputs": {"x": ROWS}}, "inputs: given beside entry_points"),
        ({"buckets": {"n": [1]}}, "buckets: given beside entry_points"),
        ({"verify": {"samples": "x.safetensors"}}, "samples: given beside entry_points"),
        ({"entry_points": {}}, "inputs: missing"),
        ({"entry_points": {"state": NOTEBOOK["entry_points"]["read"]}}, "has an attribute of that name"),
        ({"entry_points": {"promise": NOTEBOOK["entry_points"]["read"]}}, "has an attribute of that name"),
        ({"entry_points": {"read": {"method": "read"}}}, "entry_points.read.inputs: missing"),
        ({"entry_points": {"read": NOTEBOOK["entry_points"]["read"] | {"buckets": {}}}}, "'m' of inputs.query"),
    ],
)
def test_what_a_recipe_may_not_say(fields, words):
    with pytest.raises(RecipeError) as caught:
        parse_recipe(changed(**fields))
    assert words in str(caught.value)


def test_a_method_that_the_model_does_not_have(tmp_path):
    read = NOTEBOOK["entry_points"]["read"] | {"method": "erase"}
    with pytest.raises(ModelError, match="the model does not have it"):
        aotair.build(changed(entry_points={"read": read}), tmp_path / "a.aotair")


def test_distinct_values_must_be_possible():
    write = NOTEBOOK["entry_points"]["write"] | {"buckets": {"n": [9]}}
    with pytest.raises(RecipeError, match="fewer values than a bucket needs"):
        parse_recipe(changed(entry_points={"write": write}))
    item = {"shape": ["n"], "dtype": "float32", "distinct": True}
    with pytest.raises(RecipeError, match="distinct is for integers"):
        parse_recipe(recipe("Linear", {"x": item}, {"n": [1]}))


# ---- state that nobody registered ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, name",
    [
        ("PlainCache", "cache"),
        ("HeldCache", "holder.rows"),
        ("ListedCache", r"caches\[0\]"),
        ("LateCache", "holder.rows"),
        ("ReplacedCache", "holder.rows"),
    ],
)
def test_a_cache_that_is_no_buffer_is_refused_by_name(model: str, name: str, tmp_path: Path):
    with pytest.raises(UnsupportedError, match=f"the model changes {name}, which outlives the call"):
        aotair.build(recipe(model, {"x": {"shape": [2, 3], "dtype": "float32"}}), tmp_path / "a.aotair")


def test_a_parameter_that_the_model_writes_is_refused_by_name(tmp_path: Path):
    with pytest.raises(UnsupportedError, match="writes into its parameter 'weight'"):
        aotair.build(recipe("Training", {"x": {"shape": [2, 3], "dtype": "float32"}}), tmp_path / "a.aotair")


def test_a_constant_made_at_the_first_call_is_none_of_these(tmp_path: Path):
    path = aotair.build(recipe("LateConstant", {"x": {"shape": [2, 3], "dtype": "float32"}}), tmp_path / "a.aotair")
    with aotair.load(path) as model:
        assert torch.equal(model(torch.zeros(2, 3)), torch.arange(3.0).expand(2, 3))


def test_a_model_that_fails_on_its_inputs_says_so(tmp_path: Path):
    ids = {"shape": [4], "dtype": "int64", "range": [0, 50]}
    with pytest.raises(ModelError, match=r"failed on inputs within their ranges \(at models\.py:.*IndexError"):
        aotair.build(recipe("SmallTable", {"ids": ids}), tmp_path / "a.aotair")
