"""Models whose padding shows with some values only: all of them refused. And those whose padding never shows: built."""

import pytest
import torch
from torch import nn

import aotair
from aotair.errors import ProofError
from aotair_runtime.artifact.open import read_program

FLOATS = {"shape": ["b", "s"], "dtype": "float32", "pad": 0}
IDS = {"shape": ["b", "s"], "dtype": "int64", "range": [0, 50], "pad": 0}
MASK = {"shape": ["b", "s"], "dtype": "int64", "range": [0, 2], "pad": 0}


def _quantised(x):
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    scale = (high - low).clamp(min=1e-6) / 255
    return ((x - low) / scale).round() * scale + low


WRONG = {
    "max": (lambda x: x.amax(1), FLOATS),
    "min": (lambda x: x.amin(1), FLOATS),
    "max over the batch": (lambda x: x.amax(0), FLOATS),
    "max of a max": (lambda x: x.amax().expand(x.shape[0]), FLOATS),
    "argmax": (lambda x: x.argmax(1), FLOATS),
    "argmin": (lambda x: x.argmin(1), FLOATS),
    "asymmetric quantisation": (_quantised, FLOATS),
    "softmax": (lambda x: x.softmax(1), FLOATS),
    "mean": (lambda x: x.mean(1), FLOATS),
    "median": (lambda x: x.median(1).values, FLOATS),
    "any zero": (lambda x: (x == 0).any(1), FLOATS),
    "all positive": (lambda x: (x > 0).all(1), FLOATS),
    "a product of signs": (lambda x: x.sign().prod(1), FLOATS),
    "sorted": (lambda x: x.sort(1).values, FLOATS),
    "max around another value": (lambda x: x.amax(1), FLOATS | {"pad": 2.5}),
    "max over what seems far enough": (lambda x: x.amax(1), FLOATS | {"pad": -100.0}),
    "max in a range": (lambda x: x.amax(1), FLOATS | {"range": [-1, 5]}),
    "any zero among ids": (lambda x: (x == 0).any(1), IDS),
    "most frequent": (lambda x: x.mode(1).values, IDS),
    "least id": (lambda x: x.amin(1), IDS),
    "greatest of ids padded with the greatest": (lambda x: x.amax(1), IDS | {"pad": 49}),
    "count of ids": (lambda x: (x < 10).sum(1), IDS),
    "all seen": (lambda x: (x == 1).all(1), MASK),
    "least of anything": (lambda x: x.amin(1).clamp(max=0), IDS | {"pad": "any", "range": [-5, 5]}),
}

RIGHT = {
    "sum": (lambda x: x.sum(1), FLOATS),
    "max of absolutes": (lambda x: x.abs().amax(1), FLOATS),
    "symmetric quantisation": (lambda x: (x / x.abs().amax(1, keepdim=True).clamp(min=1e-6) * 127).round(), FLOATS),
    "max over what never wins": (lambda x: x.amax(1), FLOATS | {"pad": float("-inf")}),
    "max over the least number": (lambda x: x.amax(1), FLOATS | {"pad": -3e38}),
    "softmax over what never counts": (lambda x: x.softmax(1), FLOATS | {"pad": float("-inf")}),
    "max of a range of one side": (lambda x: x.amax(1), FLOATS | {"range": [0, 1]}),
    "row by row": (lambda x: torch.sin(x) * x.exp().clamp(max=5), FLOATS | {"pad": "any"}),
    "greatest id": (lambda x: x.amax(1), IDS),
    "any of them seen": (lambda x: (x == 7).any(1), IDS),
    "counted with a mask": (lambda x: x.sum(1), MASK),
    "mean over those that count": (lambda x: x.sum(1) / (x != 0).sum(1).clamp(min=1), FLOATS),
}


class Model(nn.Module):
    def __init__(self, name: str):
        super().__init__()
        self.function = {**WRONG, **RIGHT}[name][0]

    def forward(self, x):
        return self.function(x)


def recipe(name: str, sizes: list[int]) -> dict:
    item = {**WRONG, **RIGHT}[name][1]
    model = {"factory": f"{__file__}:Model", "kwargs": {"name": name}}
    return {"name": "padding", "model": model, "inputs": {"x": item}, "buckets": {"b": [1, 4], "s": sizes}}


@pytest.mark.parametrize("name", WRONG)
def test_padding_that_some_values_show_is_refused(name, tmp_path):
    with pytest.raises(ProofError, match="of the input x changes the outputs"):
        aotair.build(recipe(name, [6, 16]), tmp_path / "a.aotair")


@pytest.mark.parametrize("name", RIGHT)
def test_padding_that_no_value_shows_is_built(name, tmp_path):
    (entry,) = read_program(aotair.build(recipe(name, [6, 16]), tmp_path / "a.aotair")).entry_points
    assert all(bucket.proof.padding for bucket in entry.buckets if bucket.sizes != (1, 1))


def test_the_report_states_what_was_tried(tmp_path):
    path = aotair.build(recipe("sum", [6, 16]), tmp_path / "a.aotair")
    text = (path / "report.html").read_text()
    for words in (
        "below the pad value",
        "above the pad value",
        "far below the pad value",
        "far above the pad value",
        "far off on both sides",
        "around the pad value, with ties",
    ):
        assert f"the declared values; real values: x {words}" in text
