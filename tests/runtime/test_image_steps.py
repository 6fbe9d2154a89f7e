"""Norms of groups of channels as steps: the numbers of their definition, with SILU where it follows."""

import functools
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_steps import BF16, F16, F32, make, needs_kernels, numbers, run, same

import aotair
from aotair_runtime.steps import images, library, table
from aotair_runtime.steps.join import Joined, Named

pytestmark = [needs_kernels, pytest.mark.usefixtures("whatever_pays")]

aten = torch.ops.aten
NORM, DENSE = aten.group_norm.default, torch.channels_last


def image(shape, kind=F32, seed=0) -> torch.Tensor:
    return numbers(shape, kind, seed, special=False).contiguous(memory_format=DENSE)


def defined(x, groups, weight, bias, eps, silu=False) -> torch.Tensor:
    factors = [one if one is None else one.double() for one in (weight, bias)]
    made = torch.group_norm(x.double(), groups, *factors, eps)
    return torch.nn.functional.silu(made) if silu else made


@given(
    st.integers(1, 3), st.integers(1, 6), st.integers(1, 9), st.integers(1, 11), st.integers(1, 20),
    st.sampled_from([F32, BF16, F16]), st.sampled_from(["both", "weight", "bias", "none"]), st.booleans(),
    st.booleans(), st.integers(0, 50),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_numbers(batch, groups, each, height, width, kind, has, in_place, silu, seed):
    channels = groups * each
    x = image((batch, channels, height, width), kind, seed) + 3
    weight = torch.randn(channels).to(kind) if has in ("both", "weight") else None
    bias = torch.randn(channels).to(F32) if has in ("both", "bias") else None
    want = defined(x, groups, weight, bias, 1e-3, silu)
    out = x if in_place else torch.zeros_like(x)
    steps = table.steps(NORM, (x, groups, weight, bias, 1e-3, True), {}, [out])
    if silu:
        before = Named(lambda: None, "norm", steps)
        steps = images.followed(before, functools.partial(aten.silu_.default, out)).steps
    make(steps)
    same(out, want.to(kind), 2e-5)


def test_a_group_far_from_zero_keeps_what_it_differs_by():
    x = image((1, 8, 40, 40)) + 3000
    out = torch.zeros_like(x)
    run(NORM, x, 2, None, None, 1e-5, targets=[out])
    torch.testing.assert_close(out.double(), defined(x, 2, None, None, 1e-5), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_spoils_its_group(value: float):
    x, out = image((2, 8, 5, 5)), image((2, 8, 5, 5))
    x[1, 3, 2, 2] = value
    run(NORM, x, 4, torch.ones(8), torch.zeros(8), 1e-5, targets=[out])
    spoilt = torch.zeros(2, 8, dtype=torch.bool)
    spoilt[1, 2:4] = True
    assert torch.equal(out.isnan().all((2, 3)), spoilt) and torch.equal(out.isfinite().all((2, 3)), ~spoilt)


@pytest.mark.parametrize("kind", [F32, BF16])
def test_the_same_bits_for_any_number_of_threads(kind):
    x, before, made = image((2, 96, 17, 23), kind), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            made.append(torch.zeros_like(x))
            run(NORM, x, 32, None, None, 1e-5, targets=[made[-1]])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(made[0], one) for one in made)


X = image((2, 8, 4, 4))
DECLINED = {
    "contiguous": lambda: (NORM, (X.contiguous(), 2), torch.zeros(2, 8, 4, 4)),
    "into another layout": lambda: (NORM, (X, 2), torch.zeros(2, 8, 4, 4)),
    "sequences": lambda: (NORM, (torch.ones(2, 8, 4), 2), torch.zeros(2, 8, 4)),
    "groups that do not divide": lambda: (NORM, (X, 3), torch.zeros_like(X)),
    "no groups": lambda: (NORM, (X, 0), torch.zeros_like(X)),
    "a weight too short": lambda: (NORM, (X, 2, torch.ones(7)), torch.zeros_like(X)),
    "a weight with gaps": lambda: (NORM, (X, 2, torch.ones(16)[::2]), torch.zeros_like(X)),
    "a wide weight": lambda: (NORM, (X, 2, torch.ones(8).double()), torch.zeros_like(X)),
    "float64": lambda: (NORM, (X.double(), 2), torch.zeros_like(X).double()),
    "into another dtype": lambda: (NORM, (X, 2), torch.zeros_like(X).bfloat16()),
    "over its bias": lambda: (lambda out: (NORM, (X, 2, None, out.permute(0, 2, 3, 1).reshape(-1)[:8]), out))(
        torch.zeros_like(X)
    ),
    "many halves": lambda: (NORM, (image((1, 8, 260, 256), BF16), 2), image((1, 8, 260, 256), BF16)),
    "many channels": lambda: (NORM, (torch.ones(1, 9000, 1, 1), 1), torch.ones(1, 9000, 1, 1)),
}


@pytest.mark.parametrize("what", sorted(DECLINED))
def test_what_is_torchs(what: str, monkeypatch: pytest.MonkeyPatch):
    op, args, out = DECLINED[what]()
    assert table.steps(op, args, {}, [out]) is None
    good = (X, 2, torch.ones(8), torch.ones(8))
    assert table.steps(NORM, good, {}, [torch.zeros_like(X)]) is not None
    monkeypatch.setattr(library, "is_wide", lambda: False)
    assert table.steps(NORM, good, {}, [torch.zeros_like(X)]) is None


def test_what_follows_a_norm_is_its_own_unless_it_is_silu_of_all():
    out = torch.zeros_like(X)
    before = Named(lambda: None, "norm", table.steps(NORM, (X, 2), {}, [out]))
    partial, silu = functools.partial, aten.silu_.default
    for call in (
        partial(silu, X), partial(silu, out[:1]), partial(aten.relu_.default, out), partial(silu, out[:, ::2]),
        partial(silu, out.permute(0, 2, 3, 1).view(BF16)), lambda: None, partial(silu, out, other=1),
    ):  # fmt: skip
        assert images.followed(before, call) is None
    both = images.followed(before, partial(silu, out.permute(0, 2, 3, 1)))
    assert both is not None and images.followed(both, partial(silu, out)) is None
    assert images.followed(Named(lambda: None, "none"), partial(silu, out)) is None
    calls = list[str]()
    kept = images.followed(Named(lambda: calls.append("norm"), "norm", before.steps), partial(silu, out))
    Joined([(kept, kept.steps)], lambda *_: 0)()  # a step that there is no memory for
    assert calls == ["norm"]


class Images(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.Conv2d(32, 32, 3, padding=1)
        self.norm, self.other = torch.nn.GroupNorm(8, 32), torch.nn.GroupNorm(4, 32, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.nn.functional.silu(self.norm(self.first(x)))
        return torch.nn.functional.silu(self.other(self.second(seen)) + seen)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_model_gives_what_the_original_does(tmp_path: Path, kind: str):
    dtype = getattr(torch, kind)
    inputs = {"x": {"shape": ["n", 3, 20, 20], "dtype": kind, "pad": "any"}}
    model = Images().to(dtype)
    path = aotair.build(model=model, name="m", out=tmp_path / "m", inputs=inputs, buckets={"n": [1, 3]})
    x = torch.randn(2, 3, 20, 20).to(dtype)
    with aotair.load(path, enable_output_clone=True) as served, torch.no_grad():
        torch.testing.assert_close(
            served(x).float(), Images()(x.float()), atol=0.05 if dtype == BF16 else 1e-4, rtol=1e-2
        )
        with aotair.load(path, pack_weights=False) as plain:
            torch.testing.assert_close(
                served(x).float(), plain(x).float(), atol=0.05 if dtype == BF16 else 1e-4, rtol=1e-2
            )
