"""Recipes are read strictly, and every refusal names the file, the field, what was expected, what came, what to do."""

import builtins
import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cases import RECIPES

import aotair
from aotair.errors import RecipeError
from aotair.recipe.entry import entry_jobs
from aotair.recipe.job import job_of
from aotair.recipe.read import RESERVED, parse_recipe, read_recipe
from aotair.recipe.recipe import Recipe
from aotair_runtime.model import Model

GOOD = {
    "name": "m",
    "model": {"factory": "pkg:build"},
    "inputs": {"x": {"shape": ["n", 4], "dtype": "float32", "pad": "any"}},
    "buckets": {"n": [1, 4]},
}
INTEGERS = {"shape": ["n"], "dtype": "int8", "range": [0, 9]}


def changed(path: str, value: object) -> dict:
    """GOOD with one field set; a dotted path."""
    data = copy.deepcopy(GOOD)
    at = data
    *parents, last = path.split(".")
    for part in parents:
        at = at.setdefault(part, {})
    at[last] = value
    return data


def test_a_good_recipe_is_read_from_yaml(tmp_path: Path):
    file = tmp_path / "r.yaml"
    file.write_text(yaml.safe_dump(GOOD))
    recipe = read_recipe(file)
    (entry,) = entry_jobs(recipe)
    assert entry.dims() == ("n",)
    assert entry.bucket_sizes() == ((1,), (4,))
    assert entry.paddable("n")
    assert recipe.folder == tmp_path


def test_buckets_are_the_product_or_an_explicit_list():
    inputs = {"x": {"shape": ["a", "b"], "dtype": "float32"}}
    product = parse_recipe({**GOOD, "inputs": inputs, "buckets": {"b": [2, 3], "a": [5, 1]}})
    assert entry_jobs(product)[0].bucket_sizes() == ((1, 2), (1, 3), (5, 2), (5, 3))
    listed = parse_recipe({**GOOD, "inputs": inputs, "buckets": [{"a": 5, "b": 2}, {"a": 1, "b": 3}]})
    assert entry_jobs(listed)[0].bucket_sizes() == ((1, 3), (5, 2))


@pytest.mark.parametrize(
    ("path", "value", "at", "says"),
    [
        ("quantize.calibration", "", "quantize.calibration", "at least 1 character"),
        ("verify.samples", "", "verify.samples", "at least 1 character"),
        ("model.weights", "", "model.weights", "at least 1 character"),
        ("nam", "x", "nam", "unknown key"),
        ("model.factor", "a:b", "model.factor", "unknown key"),
        ("inputs.x.pads", 0, "inputs.x.pads", "unknown key"),
        ("config.debug.aclgraph.clone_inputs", True, "config.debug.aclgraph.clone_inputs", "unknown key"),
        ("inputs.x.dtype", "float31", "inputs.x.dtype", "float32"),
        ("inputs.x.shape", "n", "inputs.x.shape", "list"),
        ("inputs.x.shape", [0, 4], "inputs.x.shape[0]", "greater than or equal to 1"),
        ("inputs.x.pad", "some", "inputs.x.pad", "any"),
        ("verify.atol", "small", "verify.atol", "number"),
        ("verify.seed", 1.5, "verify.seed", "integer"),
        ("model.factory", "nocolon", "model.factory", "pattern"),
        ("target.device", "tpu", "target.device", "cpu"),
        ("config.debug.aclgraph.clone_input", "yes", "config.debug.aclgraph.clone_input", "boolean"),
        ("buckets", {"n": [1, 1]}, "buckets", "distinct"),
        ("buckets", {"n": []}, "buckets", "distinct"),
        ("buckets", {}, "buckets", "no sizes"),
        ("buckets", {"n": [1], "m": [2]}, "buckets.m", "no input has this dimension"),
        ("buckets", [{"n": 1, "m": 2}], "buckets[0].m", "no input has this dimension"),
        ("inputs", {"x": {"shape": [2], "dtype": "int64"}}, "inputs.x", "range"),
        ("inputs", {"x": {"shape": [2], "dtype": "int64", "range": [3, 3]}}, "inputs.x", "low < high"),
        ("inputs", {"x": {"shape": [2], "dtype": "float32", "mutated": True, "pad": 0}}, "inputs.x", "mutated"),
        ("inputs.x.pad", 1e40, "inputs.x", "pad is no value of float32"),
        ("inputs.x.pad", {"n": -(2**200)}, "inputs.x", "pad is no value of float32"),
        ("inputs.x", INTEGERS | {"pad": 1.5}, "inputs.x", "pad is no value of int8"),
        ("inputs.x", INTEGERS | {"pad": 200}, "inputs.x", "pad is no value of int8"),
        ("inputs.x", INTEGERS | {"pad": float("inf")}, "inputs.x", "pad is no value of int8"),
        ("inputs.x", {"shape": ["n"], "dtype": "bool", "pad": 3}, "inputs.x", "pad is no value of bool"),
        ("inputs", {}, "inputs", "missing"),
        ("name", "../up", "name", "pattern"),
    ],
)
def test_a_wrong_field_is_named(path: str, value: object, at: str, says: str):
    with pytest.raises(RecipeError) as caught:
        parse_recipe(changed(path, value), Path("some.yaml"))
    message = str(caught.value)
    assert message.startswith(f"some.yaml: {at}: "), message
    assert says in message


@pytest.mark.parametrize("missing", ["name", "model", "inputs"])
def test_a_missing_field_is_named(missing: str):
    data = {key: value for key, value in GOOD.items() if key != missing}
    with pytest.raises(RecipeError, match=f"{missing}: missing"):
        parse_recipe(data)


def test_an_unknown_key_lists_the_known_ones():
    with pytest.raises(RecipeError, match="factory, pretrained, task, kwargs, weights, dtype"):
        parse_recipe(changed("model.factor", 1))


@pytest.mark.parametrize(
    ("text", "says"),
    [("[1, 2", "not YAML"), ("- 1", "not a recipe"), ("", "not a recipe"), ("!!python/object:os.system x", "not YAML")],
)
def test_what_is_no_recipe_is_said(tmp_path: Path, text: str, says: str):
    file = tmp_path / "r.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError, match=says):
        read_recipe(file)


def test_a_file_that_is_not_there():
    with pytest.raises(RecipeError, match="no such recipe"):
        read_recipe("nowhere.yaml")


@pytest.mark.parametrize(
    "change, says",
    [
        ({"model": {}}, "model.factory: missing"),
        ({"inputs": {}}, "inputs: missing"),
        ({"buckets": {}}, "buckets: the dynamic dimension 'n' of inputs.x.shape has no sizes"),
    ],
)
def test_a_recipe_that_was_made_in_python_is_checked_as_one_that_was_read(change: dict, says: str, tmp_path: Path):
    with pytest.raises(RecipeError, match=re.escape(says)):
        aotair.build(Recipe.model_validate(GOOD | change), tmp_path / "out")


def test_config_refuses_unknown_names_and_wrong_types_at_assignment():
    from aotair.recipe.config import CompilerConfig

    config = CompilerConfig()
    config.debug.aclgraph.enable_output_clone = True
    assert config.debug.aclgraph.enable_output_clone is True
    with pytest.raises(ValueError, match="unknown option 'mode2'"):
        config.debug.mode2 = 1
    with pytest.raises(ValueError, match="boolean"):
        config.debug.aclgraph.clone_input = "no"


def test_every_key_and_group_of_keys_says_what_it_is_for():
    schema = Recipe.model_json_schema()
    groups = {"Recipe": schema, **schema["$defs"]}
    assert [name for name, group in groups.items() if not group.get("description")] == []
    keys = {f"{name}.{key}": value for name, group in groups.items() for key, value in group["properties"].items()}
    assert [key for key, value in keys.items() if not value.get("description")] == []


def test_the_schema_can_be_printed():
    text = subprocess.run([sys.executable, "-m", "aotair.cli", "schema"], capture_output=True, text=True, check=True)
    schema = json.loads(text.stdout)
    assert set(schema["properties"]) == set(Recipe.model_fields)
    assert schema["additionalProperties"] is False


def test_entry_points_have_no_name_that_a_loaded_model_has():
    public = {name for name in dir(Model) if not name.startswith("_")}
    assert public | {"artifact", "promise", "entry_points"} == RESERVED


def test_a_job_imports_what_the_recipe_names_once(tmp_path: Path, monkeypatch):
    (tmp_path / "counted.py").write_text(
        "import builtins\nimport torch\nbuiltins.aotair_imports = getattr(builtins, 'aotair_imports', 0) + 1\n"
        "def make():\n    return torch.nn.ReLU()\n"
    )
    (tmp_path / "passes.py").write_text(
        "import builtins\nbuiltins.aotair_imports = getattr(builtins, 'aotair_imports', 0) + 1\n"
        "def nothing(gm, example_inputs, config):\n    pass\n"
    )
    recipe = {
        "name": "once",
        "model": {"factory": "counted.py:make"},
        "inputs": {"input": {"shape": [2], "dtype": "float32"}},
        "config": {"post_grad_custom_pre_pass": "passes.py:nothing"},
    }
    monkeypatch.setattr(builtins, "aotair_imports", 0, raising=False)
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
    aotair.build(tmp_path / "r.yaml", tmp_path / "a.aotair")
    assert builtins.aotair_imports == 2
    assert job_of(read_recipe(tmp_path / "r.yaml")).config is not recipe["config"]


@pytest.mark.parametrize("ends", [[0, float("inf")], [-float("inf"), 0], [0, float("nan")], [0, 1e39], [0, 10**400]])
def test_a_range_that_the_dtype_does_not_hold_is_refused(ends):
    """Samples of an infinite range are infinite, and what the model makes of them is NaN, which agrees with NaN."""
    inputs = {"x": {"shape": [4, 4], "dtype": "float32", "range": ends}}
    with pytest.raises(RecipeError, match=r"inputs\.x"):
        parse_recipe(RECIPES["linear"] | {"inputs": inputs})


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"buckets": {"batch": [1 << 62]}}, "buckets"),
        ({"buckets": [{"batch": 2}, {"batch": 2}]}, "buckets"),
        ({"verify": {"seed": 1 << 64}}, "verify.seed"),
        ({"target": {"workspace": 1 << 64}}, "target.workspace"),
    ],
)
def test_numbers_that_nothing_holds_are_refused_with_their_place(change, at):
    with pytest.raises(RecipeError) as error:
        parse_recipe(RECIPES["linear"] | change)
    assert at in error.value.what


def test_a_key_that_stands_twice_is_refused(tmp_path):
    """YAML keeps the last one, and a build of other buckets than the first line says would be nobody's wish."""
    file = tmp_path / "twice.yaml"
    file.write_text("name: twice\nbuckets: {n: [1]}\nbuckets: {n: [8]}\n")
    with pytest.raises(RecipeError, match="the key 'buckets' stands twice"):
        read_recipe(file)
