"""Small ops of a model in one call: fewer calls, the same answers, errors by name; which library makes them."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import aotair
from aotair_runtime.capture import bind
from aotair_runtime.errors import CaptureError
from aotair_runtime.steps import join, library
from aotair_runtime.steps.join import Joined

pytestmark = pytest.mark.skipif(find_spec("aotair_kernels") is None, reason="aotair-kernels is not installed")


class Block(torch.nn.Module):
    """A norm, a product, a table: small ops between others."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.linear = torch.nn.Embedding(50, 32), torch.nn.Linear(32, 32)
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.rows(ids)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        x = torch.nn.functional.silu(self.linear(x)) + x
        return self.norm(torch.cat([-x[..., 16:], x[..., :16]], -1))


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    torch.manual_seed(0)
    model = Block().eval()
    inputs = {"ids": {"shape": ["n"], "dtype": "int64", "range": [0, 50], "pad": "any"}}
    return aotair.build(
        model=model, out=tmp_path_factory.mktemp("block") / "a", inputs=inputs, buckets={"n": [4, 16]}
    ), model


def bounds(monkeypatch: pytest.MonkeyPatch) -> list[bind.Bound]:
    made, of = list[bind.Bound](), bind.Bound.__init__
    monkeypatch.setattr(bind.Bound, "__init__", lambda self, *args: (of(self, *args), made.append(self))[0])
    return made


def test_a_replay_has_fewer_calls_and_the_same_answers(block, monkeypatch: pytest.MonkeyPatch):
    path, model = block
    made = bounds(monkeypatch)
    with aotair.load(path) as small, torch.no_grad():
        for count in (1, 4, 9):
            ids = torch.randint(50, (count,))
            torch.testing.assert_close(small(ids), model(ids), atol=1e-5, rtol=1e-5)
    with aotair.load(path, pack_weights=False) as plain:
        assert not any(isinstance(call, Joined) for bound in made[2:] for call in bound.calls)
        torch.testing.assert_close(plain(ids), model(ids), atol=1e-5, rtol=1e-5)
    for one, other in zip(made[:2], made[2:]):
        assert any(isinstance(call, Joined) for call in one.calls) and len(one.calls) < len(other.calls) - 5
        assert len(one.calls) == len(one.names)


def test_an_error_names_the_instruction(block):
    path, _ = block
    with aotair.load(path) as small, pytest.raises(CaptureError, match=r"\(index_select.*index out of range"):
        small(torch.tensor([3, 50]))


def test_without_the_library_everything_runs(block, monkeypatch: pytest.MonkeyPatch):
    path, model = block
    monkeypatch.setattr(join, "run", lambda: None)
    made = bounds(monkeypatch)
    ids = torch.arange(9)
    with aotair.load(path) as plain:
        torch.testing.assert_close(plain(ids), model(ids), atol=1e-5, rtol=1e-5)
    assert not any(isinstance(call, Joined) for bound in made for call in bound.calls)


# ---- the library -----------------------------------------------------------------------------------------------------


@pytest.fixture
def found_anew():
    library._found.cache_clear()
    yield library._found
    library._found.cache_clear()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("_PACKAGE", "no_such_package"), "not installed"),
        (("_FILE", "libother.so"), "cannot be used"),
        (("LAYOUT", 1), "of another version"),
        (("shares_threads", lambda lib: False), "threads of its own"),
    ],
)
def test_why_there_is_none(found_anew: Callable, monkeypatch: pytest.MonkeyPatch, change, text: str):
    monkeypatch.setattr(library, *change)
    assert found_anew()[0] is None and text in found_anew()[1] and library.run() is None and not library.level()


def test_it_says_what_it_uses():
    assert library.level() in ("plain", "AVX2", "AVX-512", "AVX-512, bfloat16") and not library.why_none()
