"""Sizes and structures as plain data: every kind of both, and what has no such form."""

import pytest
import torch
from exports import exported, shaped

import aotair


def test_output_sizes_are_expressions_of_the_dimensions():
    _, result = exported("halves")
    (shape,) = result.outputs
    assert shape[0] == ("dim", 0) and shape[1] == 2
    from aotair_runtime.format.sizes import evaluate

    for size in range(3, 40):
        assert evaluate(shape[2], (1, size)) == len(range(1, size, 2))


class Resize(torch.nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return torch.nn.functional.interpolate(x, scale_factor=self.factor, mode="bilinear")


@pytest.mark.parametrize("factor", [2, 0.5, 1.5, 0.75])
def test_sizes_that_are_scaled_and_rounded(factor, tmp_path):
    buckets = {"b": [1, 2], "h": [7, 9], "w": [8, 10]}
    given = {"model": Resize(factor), "inputs": {"x": shaped("b", 3, "h", "w")}, "buckets": buckets}
    model = aotair.load(aotair.build(out=tmp_path / "a.aotair", **given))
    for shape in ((1, 3, 7, 10), (2, 3, 9, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(model(x), Resize(factor)(x))
