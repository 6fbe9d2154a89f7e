"""Inputs that make sense: smallest sizes, masks, values by dimension, real samples, padding along some dimensions."""

import logging

import pytest
import safetensors.torch
import torch
from torch import nn

import aotair
from aotair.errors import ProofError, RecipeError
from aotair.model.load import load_model
from aotair.model.samples import random_inputs
from aotair.model.smallest_sizes import with_least_sizes
from aotair.recipe.job import job_of
from aotair.recipe.read import parse_recipe
from aotair.recipe.recipe import InputPart
from aotair_runtime.artifact.open import read_program
from aotair_runtime.errors import ShapeError
from aotair_runtime.format.text import summary

X = {"shape": ["n", "s"], "dtype": "float32", "pad": 0}


class Model(nn.Module):
    def __init__(self, name: str):
        super().__init__()
        self.function = MODELS[name]
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, **more):
        self.calls.add_(1)
        return self.function(x, **more)


def _needs_three(x):
    if x.shape[1] < 3:
        raise ValueError("too short")
    return x * 2


def _pooled(x, mask):
    """A mean over real positions, which is NaN in a row that has none."""
    scores = torch.zeros_like(x).masked_fill(mask == 0, float("-inf")).softmax(1)
    assert torch.compiler.is_exporting() or bool((mask != 0).any(1).all()), "a row without a real position"
    return (scores * x).sum(1)


def _left(x, mask):
    """As generation does: the last position is real."""
    assert torch.compiler.is_exporting() or bool((mask[:, -1] != 0).all()), "padded on the left"
    return x * mask.cumsum(1)


def _gathered(x, edges):
    return x[edges].sum(-1)


def _frames(x):
    """A mean over all frames: they may not be padded, the batch may."""
    return x - x.mean(1, keepdim=True)


def _sometimes_wrong(x):
    """Padding shows where a value is far from what random inputs are."""
    return x + ((x == 0).any(1, keepdim=True) & (x > 50).any(1, keepdim=True))


def _chosen(x, flag):
    assert torch.compiler.is_exporting() or bool(flag.all()), "flags that are not set"
    return x * flag


MODELS = {
    "needs three": _needs_three, "pooled": _pooled, "left": _left, "gathered": _gathered, "frames": _frames,
    "sometimes wrong": _sometimes_wrong, "chosen": _chosen, "double": lambda x: x * 2,
}  # fmt: skip


def recipe(model: str, *, buckets=None, **more) -> dict:
    inputs = {"x": X} | more.pop("inputs", {})
    return {
        "name": "samples",
        "model": {"factory": f"{__file__}:Model", "kwargs": {"name": model}},
        "inputs": inputs,
        "buckets": buckets or {"n": [1, 3], "s": [4, 8]},
    } | more


# ---- smallest sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimensions", [{}, {"s": {"min": 3}}, {"s": {"min": 4}}], ids=["tried", "said", "more"])
def test_calls_that_are_too_small_are_refused(dimensions, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "aotair"):
        path = aotair.build(recipe("needs three", dimensions=dimensions), tmp_path / "a.aotair")
    least = dimensions.get("s", {}).get("min", 3)
    assert ("the model takes no s below 3" in caplog.text) == (not dimensions)
    program = read_program(path)
    assert [dim.least for dim in program.entry_points[0].dims] == [0, least]
    assert f"dimension s: {least} at least" in summary(program)
    with aotair.load(path) as model:
        x = torch.randn(2, least)
        torch.testing.assert_close(model(x), x * 2)
        with pytest.raises(ShapeError, match=f"takes no s below {least}"):
            model(torch.randn(2, least - 1))


def test_sizes_are_tried_from_first_buffers_and_leave_none_behind():
    given = job_of(parse_recipe(recipe("needs three", buckets={"n": [2], "s": [100]})))
    model = load_model(given)
    found = with_least_sizes(model, given.entries[0])
    assert {dim: found.least(dim) for dim in ("n", "s")} == {"n": 1, "s": 3}
    assert model.calls == 0 and given.entries[0].least("s") == 1


def test_a_model_of_one_bucket_that_needs_more_than_half_of_it(tmp_path):
    path = aotair.build(recipe("needs three", buckets={"n": [2], "s": [4]}), tmp_path / "a.aotair")
    assert read_program(path).entry_points[0].dims[1].least == 3


# ---- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", "int64", "float32", "uint8"])
@pytest.mark.parametrize("side", ["left", "right", "any"])
def test_masks_have_a_real_position_in_each_row(side, dtype):
    mask = {"shape": ["n", "h", "s"], "dtype": dtype, "mask": side, "pad": 0}
    given = job_of(
        parse_recipe({**recipe("double"), "inputs": {"x": X, "mask": mask}, "buckets": {"n": [3], "h": [2], "s": [5]}})
    )
    seen = set()
    for stream in range(20):
        made = random_inputs(given.entries[0], {"n": 3, "h": 2, "s": 5}, stream)["mask"]
        assert str(made.dtype) == f"torch.{dtype}" and made.shape == (3, 2, 5)
        rows = made.int().view(-1, 5)
        assert rows.any(1).all() and set(rows.flatten().tolist()) <= {0, 1}
        steps = rows.diff(dim=1)
        assert {"left": bool((steps >= 0).all()), "right": bool((steps <= 0).all()), "any": True}[side]
        seen |= set(map(tuple, rows.tolist()))
    assert len(seen) >= 5, "as many lengths as there are"
    assert random_inputs(given.entries[0], {"n": 1, "h": 1, "s": 1}, 0)["mask"].item() == 1


@pytest.mark.parametrize(
    ("model", "side"), [("pooled", "right"), ("pooled", "left"), ("pooled", "any"), ("left", "left")]
)
def test_a_model_that_needs_a_real_position_is_built(model, side, tmp_path):
    mask = {"shape": ["n", "s"], "dtype": "int64", "mask": side, "pad": 0}
    given = recipe(model, inputs={"mask": mask})
    if model == "left":
        given["buckets"] = {"n": [1, 3], "s": [1, 4]}
    with aotair.load(aotair.build(given, tmp_path / "a.aotair"), enable_output_clone=True) as loaded:
        x, ones = torch.randn(2, 3), torch.ones(2, 3, dtype=torch.int64)
        torch.testing.assert_close(loaded(x, ones), MODELS[model](x, ones))


# ---- legal values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("legal", "values"), [(None, {0, 1}), ([0, 2], {0, 1}), ([1, 2], {1}), ([0, 1], {0})])
def test_the_range_of_booleans_is_kept(legal, values):
    item = {"shape": ["n"], "dtype": "bool", "pad": "any"} | ({"range": legal} if legal else {})
    given = job_of(parse_recipe({**recipe("chosen"), "inputs": {"flag": item}, "buckets": {"n": [64]}}))
    assert set(random_inputs(given.entries[0], {"n": 64}, 0)["flag"].int().tolist()) == values


def test_a_model_whose_booleans_have_to_be_set_is_built(tmp_path):
    flag = {"shape": ["n", 1], "dtype": "bool", "range": [1, 2], "pad": 1}
    aotair.build(recipe("chosen", inputs={"flag": flag}), tmp_path / "a.aotair")


@pytest.mark.parametrize(("high", "most"), [("nodes", 2), ("nodes + 2", 4), ("nodes - 1", 1), ("nodes+1", 3)])
def test_indices_into_another_dimension(high, most):
    items = {
        "x": {"shape": ["nodes", 4], "dtype": "float32"},
        "edges": {"shape": [200], "dtype": "int64", "range": [0, high]},
    }
    given = job_of(parse_recipe({**recipe("gathered"), "inputs": items, "buckets": {"nodes": [3]}}))
    assert random_inputs(given.entries[0], {"nodes": 3}, 0)["edges"].max() == most
    assert given.entries[0].least("nodes") == max(1, 4 - most - 1)


def test_a_graph_of_nodes_and_edges_is_built_and_padded(tmp_path):
    inputs = {
        "x": {"shape": ["nodes", 4], "dtype": "float32", "pad": "any"},
        "edges": {"shape": ["edges"], "dtype": "int64", "range": [0, "nodes"], "pad": 0},
    }
    given = {**recipe("gathered"), "inputs": inputs, "buckets": {"nodes": [2, 8], "edges": [4, 16]}}
    path = aotair.build(given, tmp_path / "a.aotair")
    assert [spec.value_range for spec in read_program(path).entry_points[0].inputs] == [None, (0.0, 8.0)]
    with aotair.load(path) as model:
        x, edges = torch.randn(5, 4), torch.tensor([4, 0, 2])
        torch.testing.assert_close(model(x, edges), _gathered(x, edges))


# ---- real samples ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 5], ids=["as large as a bucket", "smaller"])
def test_padding_that_real_samples_show_is_refused(size, tmp_path):
    given = recipe("sometimes wrong", buckets={"n": [2], "s": [4, 8]})
    given["inputs"] = {"x": X | {"range": [0.5, 10]}}
    aotair.build(given, tmp_path / "unseen.aotair")
    safetensors.torch.save_file({"x": torch.full((2, size), 60.0)}, tmp_path / "s.safetensors")
    given["verify"] = {"samples": str(tmp_path / "s.safetensors")}
    with pytest.raises(ProofError, match="changes the outputs" if size == 4 else "not the original"):
        aotair.build(given, tmp_path / "a.aotair")


def test_samples_run_with_poison_in_the_padding(tmp_path):
    given = recipe("double", buckets={"n": [2], "s": [4, 8]})
    given["inputs"] = {"x": X | {"pad": "any"}}
    samples = {f"{k}.x": torch.full((2, size), 60.0) for k, size in enumerate((4, 5, 8))}
    safetensors.torch.save_file(samples, tmp_path / "s.safetensors")
    given["verify"] = {"samples": str(tmp_path / "s.safetensors")}
    small, large = read_program(aotair.build(given, tmp_path / "a.aotair")).entry_points[0].buckets
    texts = [(run.sizes, run.poison) for run in large.proof.padding if "verify.samples" in run.poison]
    assert {sizes for sizes, _ in texts} == {(2, 4), (2, 5)} and len(texts) == 8
    assert any("x=nan; real values: those of verify.samples, 0" in text for _, text in texts)
    assert not any("verify.samples" in run.poison for run in small.proof.padding)


# ---- padding along some dimensions -----------------------------------------------------------------------------------


def test_the_batch_is_padded_and_the_frames_are_not(tmp_path):
    given = recipe("frames", buckets={"n": [4], "s": [6, 8]})
    with pytest.raises(ProofError, match="padding the dimension"):
        aotair.build(given, tmp_path / "refused.aotair")
    given["inputs"] = {"x": X | {"pad": {"n": 0}}}
    path = aotair.build(given, tmp_path / "a.aotair")
    entry = read_program(path).entry_points[0]
    assert [dim.paddable for dim in entry.dims] == [True, False] and entry.inputs[0].pad == 0
    assert {run.sizes for bucket in entry.buckets for run in bucket.proof.padding} == {(1, 6), (3, 6), (1, 8), (3, 8)}
    with aotair.load(path) as model:
        x = torch.randn(3, 6)
        torch.testing.assert_close(model(x), _frames(x))
        with pytest.raises(ShapeError, match="no bucket holds n=3, s=7"):
            model(torch.randn(3, 7))


def test_a_dimension_is_padded_where_all_inputs_allow_it():
    mask = {"shape": ["n", "s"], "dtype": "bool", "mask": "right", "pad": 0}
    inputs = {"x": X | {"pad": {"n": 0}}, "mask": mask}
    given = job_of(parse_recipe({**recipe("pooled"), "inputs": inputs}))
    assert given.entries[0].paddable("n") and not given.entries[0].paddable("s")


# ---- what means nothing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dimensions": {"t": {"min": 2}}}, "dimensions.t: no input has this dimension"),
        ({"dimensions": {"s": {"min": 5}}}, "buckets: there is one with s 4"),
        ({"dimensions": {"s": {"mim": 5}}}, "dimensions.s.mim: unknown key"),
        ({"dimensions": {"s": {"min": 0}}}, "dimensions.s.min"),
        ({"inputs": {"x": X | {"pad": {}}}}, "inputs.x: wrong value"),
        ({"inputs": {"x": X | {"pad": {"n": 0, "s": 1}}}}, "the same for all dimensions"),
        ({"inputs": {"x": X | {"pad": {"t": 0}}}}, "pad names t"),
        ({"inputs": {"x": X | {"range": [0, "t"]}}}, "no input has the dimension t"),
        ({"inputs": {"x": X | {"range": ["n", 7]}}}, "range is [number"),
        ({"inputs": {"x": X | {"range": [0, "n * 2"]}}}, "range is [number"),
        ({"inputs": {"x": X | {"dtype": "int64", "range": [2, "n"]}}}, "buckets: there is one with n 1"),
        ({"inputs": {"x": X | {"dtype": "int8", "range": [0, 300]}}}, "int8 holds whole numbers from -128 to 127"),
        ({"inputs": {"x": X | {"dtype": "bool", "range": [0, 5]}}}, "bool holds whole numbers from 0 to 1"),
        ({"inputs": {"x": X | {"dtype": "int64", "range": [0, 2.5]}}}, "whole numbers"),
        ({"inputs": {"x": X | {"dtype": "int64", "mask": "right", "range": [0, 2]}}}, "remove range"),
        ({"inputs": {"x": X | {"mask": "middle"}}}, "inputs.x.mask"),
    ],
)  # fmt: skip
def test_a_recipe_that_means_nothing_is_refused(change, says):
    with pytest.raises(RecipeError) as caught:
        job_of(parse_recipe(recipe("double") | change))
    assert says in str(caught.value)


def test_ranges_of_all_dtypes_are_as_torch_has_them():
    for name in ("int8", "int16", "int32", "int64", "uint8"):
        info = torch.iinfo(getattr(torch, name))
        assert InputPart(shape=[2], dtype=name, range=[info.min, info.max]).bounds({}) == [info.min, info.max]
        with pytest.raises(ValueError, match="holds whole numbers"):
            InputPart(shape=[2], dtype=name, range=[info.min - 1, info.max])
