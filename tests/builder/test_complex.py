"""Conjugate and negative views: of what a graph computes, of weights, buffers, states and literals, and as outputs."""

import pytest
import torch
from torch import nn
from torch.utils import _pytree

import aotair
from aotair.errors import ExportError, UnsupportedError

X = {"x": {"shape": [3, 4], "dtype": "float32"}}


def _numbers(seed: int) -> torch.Tensor:
    return torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        shared = _numbers(0)
        self.register_buffer("straight", shared)
        self.register_buffer("turned", shared.conj())
        self.register_buffer("imaginary", _numbers(1).conj().imag)
        self.plain, self.weight = shared.conj(), nn.Parameter(_numbers(2).conj())


def _spectrum(self, x):
    y = torch.fft.fft(x).conj()
    return y, y.imag, y.real, y.imag * 2, torch.fft.ifft(y * self.turned).real


def _registered(self, x):
    return x + self.imaginary, (x * self.plain).real, (x * self.weight.conj()).imag, (x * self.weight).imag


def _returned(self, x):
    return self.turned, self.straight, self.turned.imag, self.plain.imag, self.imaginary


def _literal(self, x):
    return torch.tensor([1 + 2j, 3 - 1j, 0j, 1j]).conj() + x


def _resolved(self, x):
    y = torch.fft.fft(x).conj()
    return torch.resolve_conj(y).real, torch.resolve_neg(y.imag), torch.view_as_real(y.resolve_conj())


def _negative(self, x):
    return torch._neg_view(x), torch._neg_view(x) + 1, torch._neg_view(x).t()


def _products(self, x):
    a, b = torch.complex(x, x), torch.complex(x, -2 * x)
    return (a.mH @ b).abs(), torch.einsum("ij,kj->ik", a, b.conj()), torch.vdot(a[0], b[1].conj()), a.adjoint()


def _moved(self, x):
    y = torch.complex(x, 2 * x).conj()
    return y[0], y.t().contiguous().view(torch.float32), torch.stack([y, y.conj()]), torch.cat([y.imag, x]), y.angle()


def _chosen(self, x):
    y = torch.complex(x, 2 * x)
    return torch.where(x > 0, y.conj(), y), y.conj().is_conj(), torch.polar(x.abs(), x).conj().imag


def _written(self, x):
    y = torch.complex(x, x)
    z = y.conj()
    y.imag.add_(1)
    return z, z.imag


MODELS = {
    function.__name__: function
    for function in (
        _spectrum, _registered, _returned, _literal, _resolved, _negative, _products, _moved, _chosen, _written,
    )
}  # fmt: skip


class State(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", _numbers(3))

    def forward(self, x):
        self.state.mul_(torch.complex(x, x).conj())
        return self.state.conj().imag


class Through(nn.Module):
    def forward(self, x):
        y = torch.complex(x, x)
        y.conj().mul_(2j)
        return y.real


class Wide(nn.Module):
    def forward(self, x):
        return torch.complex(x, x).to(torch.complex128)


def make(name: str) -> nn.Module:
    return type("Model", (Base,), {"forward": MODELS[name]})()


def recipe(model: str, **kwargs: str) -> dict:
    return {"name": "complex", "model": {"factory": f"{__file__}:{model}", "kwargs": kwargs}, "inputs": X}


def _assert_equal(got: object, want: object) -> None:
    got, want = _pytree.tree_leaves(got), _pytree.tree_leaves(want)
    assert not any(leaf.is_conj() or leaf.is_neg() for leaf in got if isinstance(leaf, torch.Tensor))
    assert len(got) == len(want)
    for one, other in zip(got, want):
        torch.testing.assert_close(one, other.resolve_conj().resolve_neg() if isinstance(one, torch.Tensor) else other)


@pytest.mark.parametrize("name", MODELS)
def test_views_are_what_they_stand_for(name, tmp_path):
    path, original = aotair.build(recipe("make", name=name), tmp_path / "a.aotair"), make(name)
    for options in ({}, {"clone_input": False}, {"enable_output_clone": True}):
        with aotair.load(path, **options) as model:
            for _ in range(2):
                x = torch.randn(3, 4)
                _assert_equal(model(x), original(x))


def test_a_state_that_conjugates_are_written_into(tmp_path):
    with aotair.load(aotair.build(recipe("State"), tmp_path / "a.aotair")) as model:
        original = State()
        for _ in range(3):
            x = torch.randn(3, 4)
            _assert_equal(model(x).clone(), original(x))
            _assert_equal(model.state["state"], original.state)


def test_what_cannot_be_resolved_is_refused(tmp_path):
    with pytest.raises(ExportError, match=r"(?s)writes through, a conjugate.*resolve_conj\(\)"):
        aotair.build(recipe("Through"), tmp_path / "a.aotair")
    with pytest.raises(UnsupportedError, match=r"the output 0 \(test_complex\.py:\d+, in forward\) is complex128"):
        aotair.build(recipe("Wide"), tmp_path / "a.aotair")
