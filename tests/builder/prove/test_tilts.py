"""Models whose padding shows with some values only: all of them refused. And those whose padding never shows: built."""

import pytest
import torch
from torch import nn

import aotair
from aotair.errors import ProofError
from aotair.prove.tilts import FAR, rounding, tilted, tilts
from aotair.recipe.recipe import InputPart
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
    text = (path / "report" / "forward.html").read_text()
    for words in (
        "below the pad value",
        "above the pad value",
        "far below the pad value",
        "far above the pad value",
        "far off on both sides",
        "around the pad value, with ties",
    ):
        assert f"the declared values; real values: x {words}" in text


# ---- tilts alone -----------------------------------------------------------------------------------------------------


def item(**parts) -> InputPart:
    return InputPart(**({"shape": ["s"], "dtype": "float32", "pad": 0} | parts)).at({"s": 200})


SIDES = (
    "as they come",
    "below the pad value",
    "above the pad value",
    "far below the pad value",
    "far above the pad value",
    "far off on both sides",
    "around the pad value, with ties",
)


@pytest.mark.parametrize(
    ("parts", "kinds"),
    [
        ({}, SIDES),
        ({"dtype": "bfloat16", "pad": "any"}, SIDES),
        ({"dtype": "int64", "mask": "right"}, ("as they come", "all ones")),
        ({"dtype": "bool", "mask": "any", "pad": False}, ("as they come", "all ones")),
        ({"dtype": "bool", "pad": False}, ("as they come", "all but the pad value")),
        ({"dtype": "int64", "range": [0, 2]}, ("as they come", "all but the pad value")),
        ({"dtype": "int64", "range": [0, 9], "distinct": True}, ("as they come",)),
        ({"dtype": "int64", "range": [0, 9], "pad": "any"}, ("as they come", "all the least", "all the greatest")),
        (
            {"dtype": "int32", "range": [0, 9]},
            ("as they come", "all the least", "all but the pad value", "all the greatest", "mixed with the pad value"),
        ),
        ({"pad": None}, ("as they come",)),
    ],
)
def test_each_kind_of_input_has_its_tilts(parts, kinds):
    assert tilts({"x": item(**parts)}) == kinds


def test_of_several_inputs_the_most_tilts_are_tried():
    mask, ids = item(dtype="int64", mask="right"), item(dtype="int64", range=[0, 9])
    assert len(tilts({"mask": mask, "ids": ids})) == 5
    assert tilts({"x": item(pad=None)}) == tilts({}) == ("as they come",)


REAL = torch.randn(200, generator=torch.Generator().manual_seed(1))


def moved(kind: str, real: torch.Tensor = REAL, **parts) -> torch.Tensor:
    """Real values under the tilt of that name."""
    given = item(**parts)
    found, words = tilted({"x": given}, {"x": real}, tilts({"x": given}).index(kind))
    assert words == ("" if kind == "as they come" else f"x {kind}")
    assert found["x"].dtype == real.dtype and found["x"].shape == real.shape
    return found["x"]


@pytest.mark.parametrize("pad", [0, 2.5, -100.0, "any"])
def test_values_lie_below_and_above_the_pad_value(pad):
    pivot = 0 if pad == "any" else pad
    below, above = (moved(f"{side} the pad value", pad=pad) for side in ("below", "above"))
    assert (below < pivot).all() and (below > pivot - 3).all()
    assert (above > pivot).all() and (above < pivot + 3).all()


@pytest.mark.parametrize("pad", [float("inf"), -float("inf"), 1e30])
def test_around_what_is_no_number_to_lie_around_they_lie_around_zero(pad):
    assert (moved("below the pad value", pad=pad) < 0).all() and (moved("above the pad value", pad=pad) > 0).all()
    assert set(moved("around the pad value, with ties", pad=pad).unique().tolist()) == {-0.75, 0.0, 0.75}


def test_far_off_is_beyond_the_distance():
    below, above, both = (moved(kind) for kind in SIDES[3:6])
    assert (below <= -FAR).all() and (below >= -2 * FAR).all()
    assert (above >= FAR).all() and (above <= 2 * FAR).all()
    assert (both.abs() >= FAR).all() and (both > 0).any() and (both < 0).any()


@pytest.mark.parametrize(
    ("low", "high", "pad", "pivot"),
    [(-1, 5, 0, 0), (0, 1, 0, 0.5), (2, 4, 0, 3), (-4, -2, 0, -3), (-1, 5, 9, 0), (-1, 5, 2, 2), (-1, 5, -1, 0)],
)
def test_within_a_range_they_reach_its_ends_and_stay_within(low, high, pad, pivot):
    parts = {"range": [low, high], "pad": pad}
    for kind in SIDES[1:]:
        found = moved(kind, **parts)
        assert (found >= low).all() and (found < high).all(), kind
    assert (moved("below the pad value", **parts) < pivot).all()
    assert (moved("above the pad value", **parts) > pivot).all()
    assert (moved("far below the pad value", **parts) < low + 0.06 * (pivot - low)).all()
    assert (moved("far above the pad value", **parts) > high - 0.06 * (high - pivot)).all()


def test_ties_are_three_values_of_which_the_pad_value_is_one():
    assert set(moved("around the pad value, with ties", pad=2.5).unique().tolist()) == {1.75, 2.5, 3.25}
    assert len(moved("around the pad value, with ties", range=[0, 1]).unique()) == 3


IDS_ = torch.arange(200) % 9


@pytest.mark.parametrize(
    ("kind", "parts", "values"),
    [
        ("all the least", {"range": [0, 9], "pad": 0}, {1}),
        ("all the least", {"range": [-3, 9], "pad": 0}, {-3}),
        ("all the least", {"range": [0, 9], "pad": "any"}, {0}),
        ("all the greatest", {"range": [0, 9], "pad": 8}, {7}),
        ("all the greatest", {"range": [0, 9], "pad": 0}, {8}),
        ("all the greatest", {"range": [0, 9], "pad": "any"}, {8}),
        ("all but the pad value", {"range": [0, 9], "pad": 0}, set(range(1, 9))),
        ("all but the pad value", {"range": [0, 9], "pad": 100}, set(range(9))),
        ("all but the pad value", {"range": [0, 2], "pad": 0}, {1}),
        ("all but the pad value", {"range": [0, 2], "pad": 1}, {0}),
        ("all but the pad value", {"range": [0, 1], "pad": 0}, {0}),  # there is no other
        ("all but the pad value", {"range": [0, 2], "pad": "any"}, {1}),
        ("mixed with the pad value", {"range": [0, 9], "pad": 4}, set(range(9))),
    ],
)
def test_integers_are_put_at_the_ends_and_beside_the_pad_value(kind, parts, values):
    low, high = parts["range"]
    real = (IDS_ % (high - low)) + low
    assert set(moved(kind, real, dtype="int64", **parts).unique().tolist()) == values


def test_every_other_value_is_the_pad_value_and_the_first_is_not():
    real = torch.full((3, 6), 4)
    found = moved("mixed with the pad value", real, dtype="int64", range=[0, 9], pad=4)
    assert (found[:, 1::2] == 4).all() and (found[:, ::2] != 4).all()
    outside = moved("mixed with the pad value", real, dtype="int64", range=[0, 9], pad=100)
    assert torch.equal(outside, real), "an illegal value is none that real ones have"
    alone = moved("mixed with the pad value", torch.tensor(4), dtype="int64", range=[0, 9], pad=4)
    assert alone == 4


def test_masks_are_all_ones():
    assert torch.equal(moved("all ones", torch.tensor([1, 1, 0]), dtype="int64", mask="right"), torch.ones(3).long())
    assert moved("all ones", torch.tensor([True, False]), dtype="bool", mask="left", pad=False).all()


def test_inputs_without_padding_stay_as_they_come():
    items = {"x": item(), "y": item(pad=None)}
    found, words = tilted(items, {"x": REAL, "y": REAL}, 1)
    assert found["y"] is REAL and words == "x below the pad value"


def test_the_same_number_gives_the_same_values():
    for number in range(7):
        one, two = (tilted({"x": item()}, {"x": REAL}, number)[0]["x"] for _ in range(2))
        assert torch.equal(one, two)


def test_numbers_beyond_an_inputs_tilts_begin_anew():
    items = {"mask": item(dtype="int64", mask="right"), "x": item()}
    real = {"mask": torch.tensor([1, 0]), "x": torch.zeros(2)}
    words = [tilted(items, real, number)[1] for number in range(4)]
    assert words[0] == "" and words[2] == "x above the pad value"
    assert words[1] == "mask all ones, x below the pad value" and words[3].startswith("mask all ones")


@pytest.mark.parametrize(
    ("words", "range_", "factor"),
    [
        ("", None, 1.0),
        ("x below the pad value", None, 1.0),
        ("x far below the pad value", None, FAR),
        ("x far off on both sides", None, FAR),
        ("x far off on both sides", [0, 1], 1.0),
        ("y far off on both sides", None, 1.0),
    ],
)
def test_rounding_grows_where_values_are_great(words, range_, factor):
    assert rounding({"x": item(range=range_)}, words) == factor


@pytest.mark.parametrize("real", [torch.empty(0), torch.empty(2, 0), torch.tensor(1.0), torch.zeros(1)])
def test_nothing_and_one_value_are_moved_too(real):
    for kind in SIDES:
        moved(kind, real)
