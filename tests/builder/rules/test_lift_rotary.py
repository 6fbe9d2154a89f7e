"""`lift_rotary`: every variant, and each reason to decline."""

import pytest
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


X = half(2, 3, 4, 32)


def _terms(x, cos, sin, cut):
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    if cut == "split":
        first, second = x.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return (x, cos), (turned, sin)


@pytest.mark.parametrize("cut", ["split", "slices"])
@pytest.mark.parametrize("turn", range(8))
def test_the_arguments_of_each_op_in_either_order(cut, turn):
    def function(x, cos, sin):
        (a, b), (c, d) = _terms(x, cos, sin, cut)
        one, other = a * b if turn & 1 else b * a, c * d if turn & 2 else d * c
        return (one + other if turn & 4 else other + one,)

    fires("lift_rotary", "npu_rotary_mul", function, X, half(1, 1, 4, 32), half(1, 1, 4, 32, seed=1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "rows", [(1, 1, 4, 32), (2, 1, 4, 32), (2, 3, 4, 32), (1, 3, 1, 32), (2, 3, 1, 32), (2, 1, 1, 32)]
)
def test_cosines_of_every_layout(dtype, rows):
    inputs = X.to(dtype), half(*rows, seed=2).to(dtype), half(*rows, seed=3).to(dtype)
    fires("lift_rotary", "npu_rotary_mul", rotated, *inputs)


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (0, 3, 4, 32)])
def test_one_pair_and_no_batch(shape):
    fires("lift_rotary", "npu_rotary_mul", rotated, half(*shape), half(*shape, seed=1), half(*shape, seed=2))


@pytest.mark.parametrize(
    ("why", "inputs"),
    [
        ("x_1 is float64", (X.double(), X.double(), X.double())),
        ("cos_1 is float64 and x_1 is float16", (X, X.double(), X.double())),
        ("sin_1 is float32 and x_1 is float16", (X, X, X.float())),
        ("batches and heads, the kernel takes less than 1000", (half(1000, 1, 1, 2),) * 3),
        ("cos_1 has the shape [1, 1, 4, 1] for x_1 of [2, 3, 4, 32]", (X, half(1, 1, 4, 1), half(1, 1, 4, 32))),
        ("cos_1 and sin_1 differ in shape", (X, half(1, 1, 4, 32), half(2, 3, 4, 32))),
    ],
)
def test_what_the_kernel_does_not_take_declines(why, inputs):
    declines("lift_rotary", why, rotated, *(tensor.clone() for tensor in inputs))


def test_what_is_turned_along_another_dimension_declines():
    def function(x, cos, sin):
        first, second = x.split(2, 2)
        return (x * cos + torch.cat((-second, first), 2) * sin,)

    square = half(4, 1, 4, 4)
    why = "what is turned is not the last dimension"
    declines("lift_rotary", why, function, square, square.clone(), square.clone())


def test_a_split_into_unequal_parts_declines():
    def function(x, cos, sin):
        first, second = x.split(2, -1)
        return (x * cos + torch.cat((-second, first), -1) * sin,)

    declines("lift_rotary", "is not split into halves", function, half(1, 1, 2, 3), half(1, 1, 2, 3), half(1, 1, 2, 3))


# ---- other dtypes, and neighbours -----------------------------------------------------------------------------------


def neighbours(x, cos, sin):
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return (x * cos + turned * sin,)


@pytest.mark.parametrize("function", [rotated, neighbours])
@pytest.mark.parametrize(("wide", "narrow"), [(0, 1), (1, 0), (0, 0)])
def test_the_products_may_be_wider_than_one_of_the_factors(function, wide, narrow):
    """Cosines of float32, as in OLMo 2, or an x that was made wide, as in Cohere 2."""
    kinds = [torch.float16, torch.float32]
    x = half(2, 3, 4, 32).to(kinds[wide])
    cos, sin = (half(1, 1, 4, 32, seed=seed).to(kinds[narrow]) for seed in (1, 2))
    fires("lift_rotary", "npu_rotary_mul", function, x, cos, sin)


@pytest.mark.parametrize("rows", [(1, 1, 4, 32), (2, 1, 4, 32), (1, 3, 1, 32), (2, 1, 1, 32), (2, 3, 1, 32)])
def test_neighbours_turned_by_cosines_of_several_layouts(rows):
    cos, sin = half(*rows, seed=1), half(*rows, seed=2)
    if rows == (2, 3, 1, 32):
        declines("lift_rotary", "heads come before the sequence", neighbours, X, cos, sin)
    else:
        fires("lift_rotary", "npu_rotary_mul", neighbours, X, cos, sin)


@pytest.mark.parametrize("turn", range(8))
def test_neighbours_with_the_arguments_in_either_order(turn):
    def function(x, cos, sin):
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        one, other = x * cos if turn & 1 else cos * x, turned * sin if turn & 2 else sin * turned
        return (one + other if turn & 4 else other + one,)

    fires("lift_rotary", "npu_rotary_mul", function, X, half(1, 1, 4, 32), half(1, 1, 4, 32, seed=1))


@pytest.mark.parametrize(
    ("why", "turned"),
    [
        ("not every other element", lambda x: torch.stack([-x[..., ::2], x[..., 1::2]], -1).flatten(-2)),
        ("not every other element", lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -2).flatten(-2)),
        ("stands where the rule needs aten.neg", lambda x: torch.stack([x[..., 1::2], x[..., ::2]], -1).flatten(-2)),
    ],
)
def test_other_turns_of_neighbours_stay(why, turned):
    angles = half(1, 1, 4, 32), half(1, 1, 4, 32, seed=1)
    declines("lift_rotary", why, lambda x, cos, sin: (x * cos + turned(x) * sin,), X, *angles)


def test_neighbours_that_differ_between_heads_stay():
    declines("lift_rotary", "alike in every head", neighbours, X, half(2, 3, 4, 32), half(2, 3, 4, 32, seed=1))


def test_complex_numbers_are_told_of():
    def function(x, cos, sin):
        pairs = torch.view_as_complex(x.view(2, 3, 4, 16, 2))
        return (torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(3),)

    declines("lift_rotary", "turned as complex numbers", function, X.float(), *(half(4, 16).float(),) * 2)


def _half_by_half(first, second, cos, sin):
    return (torch.cat([first * cos - second * sin, second * cos + first * sin], -1),)


def test_halves_that_are_written_out():
    cos, sin = half(1, 1, 4, 16), half(1, 1, 4, 16, seed=1)
    fires("lift_rotary", "npu_rotary_mul", lambda x, *turn: _half_by_half(*x.chunk(2, -1), *turn), X, cos, sin)

    def neighbours(x, *turn):
        return _half_by_half(x[..., 0::2], x[..., 1::2], *turn)

    fires("lift_rotary", "npu_rotary_mul", neighbours, X, cos, sin)
    declines("lift_rotary", "has the shape [1, 3, 4, 16]", neighbours, half(2, 3, 4, 32), half(1, 3, 4, 16), sin)

    def swapped(x, *turn):
        return _half_by_half(x[..., 1::2], x[..., 0::2], *turn)

    declines("lift_rotary", "not every other element", swapped, X, cos, sin)
    uneven = half(2, 3, 4, 48)
    declines(
        "lift_rotary",
        "is not split into halves",
        lambda x, *turn: _half_by_half(*x.split(16, -1)[:2], *turn),
        uneven,
        cos,
        sin,
    )
