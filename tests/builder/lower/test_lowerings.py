"""Composites as the calls of their own kernels: which, with which numbers, and where they stay whole."""

from exports import exported
from graphs import targets

from aotair.lower.specialise import specialise


def test_lowering_makes_the_composites_own_calls():
    _, result = exported("linear")
    concrete = specialise(result.module, {"x": (4, 4)}, "test")
    assert targets(concrete) == ["aten.t.default", "aten.addmm.default"]
