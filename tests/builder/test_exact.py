"""What a model of half precision computes without its rounding, and how far that rounding takes it."""

import copy

import pytest
import torch
from torch.nn.functional import layer_norm, scaled_dot_product_attention

from aotair.model.exact import HALVES, SINGLES, Exact, roundings
from aotair.model.rounding import rounded

BF16 = torch.bfloat16


class Layers(torch.nn.Module):
    """Products, a norm in float32, attention, a cache that is written in place and read through views."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(50, 32)
        self.into, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32, bias=False)
        self.to(dtype)
        self.register_buffer("cache", torch.zeros(2, 9, 32, dtype=dtype))
        self.register_buffer("angles", torch.linspace(0.1, 3, 32))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for _ in range(3):
            wide = layer_norm(x.float(), (32,)) * torch.cos(self.angles)
            query, key, value = self.into(wide.to(x.dtype)).chunk(3, -1)
            self.cache[0, : len(ids)] = key
            self.cache.narrow(0, 1, 1)[0].index_copy_(0, torch.arange(len(ids)), value)
            keys, values = self.cache[:, : len(ids)].unbind()
            seen = scaled_dot_product_attention(query[None, None], keys[None, None], values.expand(1, 1, -1, -1))
            x = x + self.out(seen[0, 0])
            x = x.masked_fill_(x > 20, 0).mul_(1.25)
        return x


def pair(dtype: torch.dtype) -> tuple[Layers, Layers]:
    narrow = Layers(dtype)
    wide = copy.deepcopy(narrow).float()
    return narrow, wide


@pytest.mark.parametrize("dtype", HALVES.lost)
@torch.no_grad()
def test_shadows_are_what_float32_gives(dtype: torch.dtype):
    (narrow, wide), ids = pair(dtype), torch.tensor([3, 1, 4, 1, 5])
    want = wide(ids)
    with Exact(narrow) as exact:
        plain = narrow(ids)
    torch.testing.assert_close(exact.of(plain), want, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(exact.of(narrow.cache), wide.cache, atol=2e-6, rtol=2e-6)
    assert plain.dtype == dtype and exact.knows(plain) and not torch.equal(plain.float(), want)


@torch.no_grad()
def test_the_model_answers_what_it_answers_otherwise():
    (narrow, _), ids = pair(BF16), torch.tensor([3, 1, 4, 1, 5])
    want = narrow(ids)
    narrow.cache.zero_()
    with Exact(narrow, torch.Generator().manual_seed(0)):
        got = narrow(ids)
    torch.testing.assert_close(got, want, atol=0.05, rtol=0.05)  # composites are apart within it


@torch.no_grad()
def test_rounding_at_random_goes_up_or_down_and_is_right_in_the_mean():
    x = torch.full((20000,), 1 + 2.0**-9, dtype=torch.float32)  # a quarter of the way to the next number

    class Cast(torch.nn.Module):
        def forward(self, x):
            return x.to(BF16)

    with Exact(Cast(), torch.Generator().manual_seed(0)) as exact:
        found = exact.of(Cast()(x))
    assert set(found.tolist()) == {1.0, 1 + 2.0**-7}
    assert abs(found.mean().item() - x[0].item()) < 2.0**-13
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0])
    with Exact(Cast(), torch.Generator().manual_seed(0)) as exact:
        assert torch.equal(exact.of(Cast()(special)).nan_to_num(7, 8, 9), special.nan_to_num(7, 8, 9))


@torch.no_grad()
def test_what_is_made_of_weights_alone_is_as_it_is():
    """A weight that a model rounds is that weight, not an error of its rounding."""

    class Rounded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8, 32).to(BF16))

        def forward(self, x):
            return x @ rounded(self.weight, 4, 32, BF16).dequantized(BF16).t()

    model, x = Rounded(), torch.randn(3, 32).to(BF16)
    with Exact(model) as exact:
        found = exact.of(model(x))
    weight = rounded(model.weight, 4, 32, BF16).dequantized(BF16)
    torch.testing.assert_close(found, x.float() @ weight.float().t(), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_how_far_rounding_takes_a_model():
    (narrow, wide), ids = pair(BF16), torch.tensor([3, 1, 4, 1, 5])
    found = roundings(narrow, lambda: {"x": narrow(ids).clone(), "ids": ids, "cache": narrow.cache.clone()})
    own = (narrow(ids).float() - wide(ids)).abs().max().item()
    assert found.keys() == {"x", "cache"}, "whole numbers are none"
    assert 0.3 * own < found["x"] < 10 * own


@torch.no_grad()
def test_of_a_model_of_float32_the_shadows_are_of_float64():
    single = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8)
    )
    x = torch.randn(5, 16)
    want = copy.deepcopy(single).double()(x.double())
    with Exact(single, widening=SINGLES) as exact:
        plain = single(x)
    torch.testing.assert_close(exact.of(plain), want, atol=1e-13, rtol=1e-13)
    own = (plain.double() - want).abs().max().item()
    found = roundings(single, lambda: {"x": single(x)})
    assert plain.dtype == torch.float32 and own <= found["x"] < 20 * own


@torch.no_grad()
def test_a_sine_of_large_numbers_is_moved_by_the_rounding_of_what_it_is_of():
    model, x = torch.nn.Linear(4, 4), torch.full((2, 4), 3000.0)
    found = roundings(model, lambda: {"sine": model(x).sin(), "sum": model(x)})
    assert 1e-6 < found["sine"] < 1e-2 and found["sum"] < 1e-2


@torch.no_grad()
def test_memory_of_what_is_gone_is_let_go():
    model, x = torch.nn.Identity(), torch.ones(4, dtype=BF16)
    with Exact(model) as exact:
        for _ in range(2000):
            x = x * 1.0
    assert len(exact._shadows) < 600


@torch.no_grad()
def test_what_is_written_into_other_dtypes_is_written_once():
    """A shadow must not be written into the model's own memory."""

    class Writes(torch.nn.Module):
        def forward(self, x):
            wide, counted, listed = torch.zeros(4), torch.zeros(4, dtype=torch.int64), torch.zeros(4).to(BF16)
            third = x / 3
            wide.copy_(third)
            counted.copy_(third * 300)
            listed[1:3].add_(third[1:3])
            return wide, counted, listed

    model, x = Writes(), torch.tensor([1.0, 2.0, 4.0, 5.0]).to(BF16)
    want = model(x)
    with Exact(model) as exact:
        got = model(x)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    third = x.float() / 3
    torch.testing.assert_close(exact.of(got[0]), third, atol=1e-7, rtol=0)
    torch.testing.assert_close(exact.of(got[2])[1:3], third[1:3], atol=1e-7, rtol=0)
    assert not exact.knows(got[1])


def test_a_model_that_fails_where_it_is_watched_is_excused_nothing():
    def fails():
        raise TypeError("no mode here")

    assert roundings(torch.nn.Identity(), fails) == {}
