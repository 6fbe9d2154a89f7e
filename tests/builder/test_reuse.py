"""A second checkpoint under the programs of the first: the same bytes as a build of its own, and refused where not."""

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from cases import MODELS, RECIPES
from marks import long

import aotair
from aotair.errors import ProofError, RecipeError
from aotair.export.export import export
from aotair.fingerprint import origin_of
from aotair.model.load import load_model
from aotair.model.tied_names import Names
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.reuse import _check_origin, _fresh, _value, built_like
from aotair.summary import Bisection
from aotair_runtime.artifact.digests import digest
from aotair_runtime.artifact.open import read_program
from aotair_runtime.errors import NotAnArtifactError, WeightsError
from aotair_runtime.format.schema import Constant, Origin


def second(name: str, folder: Path, seed: int = 1, **parts: object) -> dict:
    """The recipe of one of RECIPES over a checkpoint with other weights, under another name."""
    torch.manual_seed(seed)
    tensors = load_model(job_of(parse_recipe(RECIPES[name]))).state_dict()
    tensors.pop("b.weight", None)  # tied
    file = folder / f"{name}{seed}.safetensors"
    safetensors.torch.save_file({key: torch.randn_like(tensor) for key, tensor in tensors.items()}, file)
    model = RECIPES[name]["model"] | {"weights": str(file)}
    return RECIPES[name] | {"name": "second", "model": model, "verify": {"seed": 7}} | parts


def files(path: Path) -> dict[str, str]:
    return {file.name: digest(file) for file in sorted(path.iterdir()) if file.is_file() and file.suffix != ".html"}


@pytest.mark.parametrize("name", ["encoder", "derived", *map(long, ("linear", "counter", "streams"))])
def test_it_is_what_a_build_of_its_own_makes(built, tmp_path: Path, name: str):
    recipe = second(name, tmp_path) if name != "streams" else RECIPES[name] | {"name": "second"}
    alone = aotair.build(recipe, tmp_path / "alone.aotair")
    like = aotair.build(recipe, tmp_path / "like.aotair", like=built(name))
    assert files(like) == files(alone)
    if name == "streams":
        return
    assert files(like)["weights.safetensors"] != files(built(name))["weights.safetensors"]
    model = aotair.load(built(name))
    model.load_weights(like)
    texts = [tensor.numpy().tobytes() for tensor in model._resident.constants]
    assert texts == [tensor.numpy().tobytes() for tensor in aotair.load(like)._resident.constants]


def test_no_pass_and_no_plan_is_made(built, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("aotair.one_mesh.pipeline.apply", lambda *_: pytest.fail("a pass"))
    monkeypatch.setattr("aotair.one_mesh.build_program", lambda *_: pytest.fail("a plan"))
    out = aotair.build(second("encoder", tmp_path), tmp_path / "o.aotair", like=built("encoder"))
    assert read_program(out).name == "second"
    assert all(b.proof is not None for e in read_program(out).entry_points for b in e.buckets)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"buckets": {"n": [1, 4]}}, "another recipe"),
        ({"config": {"experimental_config": {"remove_noop_ops": False}}}, "another recipe"),
        ({"verify": {"atol": 1e-3}}, "another recipe"),
        ({"model": {"factory": f"{MODELS}:Tied"}}, "another recipe"),
    ],
)
def test_another_recipe_is_refused(built, tmp_path: Path, change: dict, says: str):
    with pytest.raises(RecipeError, match=says):
        aotair.build(RECIPES["linear"] | change, tmp_path / "o.aotair", like=built("linear"))
    assert list(tmp_path.iterdir()) == []


def test_another_graph_is_refused(tmp_path: Path):
    """The same recipe over a factory that has changed since."""
    source = tmp_path / "m.py"
    text = (
        "import torch\nclass M(torch.nn.Linear):\n    def forward(self, x):\n        return super().forward(x) * {}\n"
    )
    x = {"shape": ["n", 2], "dtype": "float32"}
    model = {"factory": f"{source}:M", "kwargs": {"in_features": 2, "out_features": 3}}
    data = {"name": "m", "model": model, "inputs": {"x": x}, "buckets": {"n": [1, 2]}}
    source.write_text(text.format(2))
    first = aotair.build(data, tmp_path / "m.aotair")
    source.write_text(text.format(3))
    with pytest.raises(RecipeError, match="exports another graph"):
        aotair.build(data, tmp_path / "o.aotair", like=first)


def test_a_pass_that_has_changed_is_refused(tmp_path: Path):
    source = tmp_path / "p.py"
    source.write_text("def nothing(gm, example_inputs, config):\n    pass\n")
    data = RECIPES["linear"] | {"config": {"post_grad_custom_pre_pass": f"{source}:nothing"}}
    first = aotair.build(data, tmp_path / "a.aotair")
    aotair.build(data, tmp_path / "b.aotair", like=first)
    source.write_text("def nothing(gm, example_inputs, config):\n    return None\n")
    with pytest.raises(RecipeError, match="have changed since"):
        aotair.build(data, tmp_path / "c.aotair", like=first)
    made = {"__name__": "made"}
    exec("def nothing(gm, example_inputs, config):\n    pass", made)
    out = aotair.build(RECIPES["linear"], tmp_path / "d.aotair", post_grad_custom_pre_pass=made["nothing"])
    with pytest.raises(RecipeError, match="it does not say"):
        aotair.build(RECIPES["linear"], tmp_path / "e.aotair", like=out)


def test_weights_that_are_no_longer_equal_are_refused_by_name(built, tmp_path: Path):
    recipe = second("tied", tmp_path)
    with pytest.raises(RecipeError, match=r"(?s)a.weight and c.weight are one tensor.*share_equal_weights: false"):
        aotair.build(recipe, tmp_path / "o.aotair", like=built("tied"))
    apart = {"share_equal_weights": False}
    first = aotair.build(RECIPES["tied"] | {"model": RECIPES["tied"]["model"] | apart}, tmp_path / "first.aotair")
    other = aotair.build(recipe | {"model": recipe["model"] | apart}, tmp_path / "o.aotair", like=first)
    model = aotair.load(first, enable_output_clone=True)
    x = torch.ones(4, 4)
    assert not torch.equal(model(x), aotair.load(other)(x))
    model.load_weights(other)
    assert torch.equal(model(x), aotair.load(other)(x))


def test_the_proof_is_made_for_the_new_weights(built, tmp_path: Path, monkeypatch):
    """A program that does not fit is caught, whatever its digests say."""
    from dataclasses import replace

    from aotair import builder, reuse

    recipe = second("linear", tmp_path)
    honest = builder.origin_of
    monkeypatch.setattr(builder, "origin_of", lambda *args: replace(honest(*args), recipe=""))
    with pytest.raises(RecipeError, match="another recipe"):
        aotair.build(recipe, tmp_path / "o.aotair", like=built("linear"))
    monkeypatch.setattr(builder, "origin_of", honest)
    wrong = reuse._value
    monkeypatch.setattr(reuse, "_value", lambda *args: wrong(*args) * 2)
    with pytest.raises(ProofError):
        aotair.build(recipe, tmp_path / "o.aotair", like=built("linear"))


def test_what_is_no_artifact(built, tmp_path: Path):
    with pytest.raises(NotAnArtifactError):
        aotair.build(RECIPES["linear"], tmp_path / "o.aotair", like=tmp_path / "gone")
    with pytest.raises(RecipeError, match="it does not say"):
        old = Path(__file__).parent.parent / "artifacts" / "format1" / "encoder"
        aotair.build(RECIPES["encoder"], tmp_path / "o.aotair", like=old)
    with pytest.raises(WeightsError):
        aotair.load(built("linear")).load_weights(built("encoder"))


# ---- alone -----------------------------------------------------------------------------------------------------------

MINE = Origin("torch 1", "recipe", "code", "graph")
NAMES = Names({"a": ("a", "b"), "b": ("a", "b"), "c": ("c",)})
HERE = Path("other.aotair")


def test_equal_origins_fit():
    _check_origin(MINE, replace(MINE), HERE)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("versions", "it was built with other versions"),
        ("recipe", "it was built from another recipe"),
        ("code", "the recipe's passes or fusion rules have changed since"),
        ("graph", "the model exports another graph"),
    ],
)
def test_each_part_of_the_origin_has_its_words(field, says):
    with pytest.raises(RecipeError, match=says) as caught:
        _check_origin(replace(MINE, **{field: "another"}), MINE, HERE)
    error = caught.value
    assert (error.where, error.fix) == ("other.aotair", "build without --like")
    assert (error.expected, error.got) == (("torch 1", "another") if field == "versions" else ("", ""))


@pytest.mark.parametrize(
    ("other", "mine", "says"),
    [
        (Origin(), MINE, "it does not say"),
        (Origin(), Origin(), "it does not say"),
        (MINE, Origin(), "the model is an object, or sources of passes or rules are not found"),
    ],
)
def test_an_origin_that_is_not_known_fits_nothing(other, mine, says):
    with pytest.raises(RecipeError, match=f"whether the artifact fits is not known: {says}"):
        _check_origin(other, mine, HERE)


def constant(*groups: tuple[str, ...], shape: tuple[int, ...] = (2,), dtype: str = "float32") -> Constant:
    return Constant("stored", dtype, shape, "weight", groups)


ONE, TWO = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ([("a", "b")], {"a": ONE}),
        ([("a", "b")], {"b": ONE}),  # by another name that is tied to it
        ([("c",)], {"c": ONE, "a": TWO}),
        ([("a", "b"), ("c",)], {"a": ONE, "c": ONE.clone()}),
        ([("c",)], {"c": torch.stack([ONE, ONE], 1)[:, 0]}),
    ],
)
def test_a_constant_gets_the_value_of_the_tensors_that_it_stands_for(groups, found):
    value = _value(constant(*groups), found, NAMES, HERE)
    assert torch.equal(value, ONE) and value.is_contiguous() and not value.requires_grad


@pytest.mark.parametrize(
    ("groups", "found", "says"),
    [
        ([("c",)], {"a": ONE}, "the model has no c like the artifact's"),
        ([("c",)], {"c": ONE.double()}, "the model has no c like the artifact's"),
        ([("c",)], {"c": ONE.view(1, 2)}, "the model has no c like the artifact's"),
        ([("a", "b"), ("c",)], {"a": ONE, "c": TWO}, "a and c are one tensor in the artifact and differ in this model"),
        ([("a",), ("c",)], {"a": torch.zeros(2), "c": -torch.zeros(2)}, "a and c are one tensor"),  # by their bytes
        ([], {"a": ONE}, "the artifact does not say what stored stands for"),
        ([()], {"a": ONE}, "the artifact does not say what stored stands for"),
    ],
)
def test_what_does_not_fit_is_said_by_its_name(groups, found, says):
    with pytest.raises(RecipeError, match=says) as caught:
        _value(constant(*groups), found, NAMES, HERE)
    assert caught.value.where == "other.aotair" and caught.value.what.startswith("--like: ")


def test_nothing_of_the_other_weights_is_left(built):
    job = job_of(parse_recipe(RECIPES["linear"] | {"name": "mine"}))
    other = read_program(built("linear"))
    found = _fresh(other, job)
    assert found.name == "mine" and found.files == () and other.files
    assert all(bucket.proof is None for entry in found.entry_points for bucket in entry.buckets)
    assert replace(found, name=other.name, files=other.files, entry_points=other.entry_points) == other


def test_states_are_aside_from_the_models_own(built):
    """The model goes on writing into its buffers while it is proved."""
    job = job_of(parse_recipe(RECIPES["counter"]))
    model = load_model(job)
    graph = export(model, job.entries[0])
    found = built_like(built("counter"), [graph], job, origin_of([graph], job, Bisection()))
    (state,) = (item.tensor for item in graph.states.values())
    assert torch.equal(found.weights["count"], state) and found.weights["count"].data_ptr() != state.data_ptr()
    assert found.pictures == {} and found.program.name == job.name
