"""`lift_rotary`: every variant, and each reason to decline."""

import torch
from fusing import declines, fires, half, symbolic

aten, npu = torch.ops.aten, torch.ops.npu


def _rotated(x, cos, sin):
    first, second = x.split(x.shape[-1] // 2, -1)
    return (x * cos + torch.cat([-second, first], -1) * sin,)


def rotated(x, cos, sin):
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return (x * cos + torch.cat((-second, first), -1) * sin,)


def _by_chunks(first, second, x, cos, sin):
    return (x * cos + torch.cat((-second, first), -1) * sin,)


def test_rotations():
    x, cos, sin = half(2, 3, 4, 32), half(1, 1, 4, 32), half(1, 1, 4, 32, seed=1)
    assert len(fires("lift_rotary", "npu_rotary_mul", rotated, x, cos, sin)) == 1
    fires("lift_rotary", "npu_rotary_mul", lambda x, cos, sin: _by_chunks(*x.chunk(2, -1), x, cos, sin), x, cos, sin)
    for shape in ((1, 3, 4, 32), (1, 1, 1, 32)):
        declines("lift_rotary", "has the shape [1, ", rotated, x, half(*shape), half(*shape))
    declines("lift_rotary", "differ in shape", rotated, x, cos, half(2, 1, 4, 32))
    large = half(1, 1, 2, 896)
    declines("lift_rotary", "not an even number below 896", rotated, large, large, large)
    declines("lift_rotary", "has 3 dimensions", rotated, x[0], cos[0], sin[0])
    declines("lift_rotary", "has the shape [32]", rotated, x, cos[0, 0, 0], sin[0, 0, 0])

    def swapped(x, cos, sin):
        return (x * cos + torch.cat((-x[..., :16], x[..., 16:]), -1) * sin,)

    declines("lift_rotary", "is not cut into halves", swapped, x, cos, sin)


def test_halves_of_a_symbolic_size_decline():
    edits = symbolic("lift_rotary", _rotated, *(half(2, 3, 5, 16, seed=seed) for seed in range(3)))
    assert edits.count == 0 and "is split by a symbolic size" in edits.accounts[0].text


def test_numbers_are_no_cosines():
    declines("lift_rotary", "0.5 is not a tensor", lambda x: rotated(x, 0.5, 0.8), half(2, 3, 4, 32))
