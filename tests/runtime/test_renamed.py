"""Names of a checkpoint that all lack or have what stands before the model's, beside others that the model has not."""

import pytest

from aotair_runtime.artifact.renamed import moved

WANTED = frozenset({"model.model.embed.weight", "model.model.layers.0.mlp.up.weight", "model.model.norm.weight"})


@pytest.mark.parametrize("before", ["", "model."])
@pytest.mark.parametrize("other", [(), ("layers.61.mlp.experts.3.shared.head.weight",), ("rotary.inv_freq", "a.b.c.d")])
def test_a_prefix_is_found_by_the_names_that_there_are(before: str, other: tuple[str, ...]):
    names = [before + name for name in ("embed.weight", "layers.0.mlp.up.weight", "norm.weight", *other)]
    found = moved(names, WANTED)
    assert {name for name in found.values() if name in WANTED} == WANTED and len(found) == len(names)


def test_a_prefix_is_taken_away():
    names = ["x.y.embed.weight", "x.y.norm.weight", "x.y.head.bias", "z.much.deeper.than.all.others"]
    assert moved(names, frozenset({"embed.weight", "norm.weight"}))["x.y.norm.weight"] == "norm.weight"


def test_names_that_fit_as_they_are_or_several_ways_stay():
    assert moved(["norm.weight", "x"], frozenset({"norm.weight", "a.x"}))["x"] == "x"
    assert moved(["weight"], frozenset({"a.weight", "b.weight"})) == {"weight": "weight"}
    assert moved([], WANTED) == {}
