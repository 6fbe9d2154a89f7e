"""The bound of the proof, and what the original's own rounding adds to it."""

import pytest
import torch
from exports import entry_of, model_of, shaped

from aotair.model.reference import Original
from aotair.model.wider import Wider
from aotair.prove.apart import apart
from aotair.prove.lived import Lived
from aotair.prove.runs import Run
from aotair_runtime.format.schema import Tolerance

SCALE = Tolerance(0.0, 0.0, 64 * 2.0**-23)


def run(*tensors: torch.Tensor, moved: tuple[torch.Tensor, ...] | None = None) -> Run:
    names = [f"output {n}" for n in range(len(tensors))]
    return Run(names, list(tensors), lambda: None if moved is None else Run(names, list(moved)))


def test_where_the_original_moves_as_much_it_is_no_fault():
    """A difference of large numbers: its own float64 answer is as far off."""
    want = torch.full((64,), 1.0)
    got, precise = want + 1e-4, want + 5e-5
    assert set(apart(run(want), run(got), SCALE).wrong) == {"output 0"}
    found = apart(run(want, moved=(precise,)), run(got), SCALE)
    assert not found.wrong and found.slack["output 0"] == pytest.approx(4e-4, rel=1e-2)
    assert apart(run(want, moved=(want,)), run(got), SCALE).wrong, "it does not move"


def test_a_movement_of_all_does_not_excuse_everything():
    want = torch.full((64,), 1.0)
    assert apart(run(want, moved=(want * 9,)), run(want + 1e-2), SCALE).wrong


def test_nobody_asks_where_the_bound_holds_or_is_absolute():
    def fails():
        pytest.fail("asked")

    want = torch.ones(64)
    assert not apart(Run(["x"], [want], fails), Run(["x"], [want + 1e-6]), SCALE).wrong
    assert apart(Run(["x"], [want], fails), Run(["x"], [want + 1]), Tolerance(1e-3, 0.0)).wrong


def test_a_choice_that_the_original_makes_otherwise_is_left_open():
    want, other = torch.tensor([3, 9]), torch.tensor([3, 8])
    assert not apart(run(want, moved=(other,)), run(torch.tensor([3, 7])), SCALE).wrong
    assert apart(run(want, moved=(other,)), run(torch.tensor([4, 9])), SCALE).wrong


def test_sums_are_made_in_float64():
    x = torch.cat([torch.full((1,), 1e8), torch.ones(4096), torch.full((1,), -1e8)]).view(1, -1)
    with Wider():
        found = x @ torch.ones(x.shape[1], 1), x.sum(), torch.nn.functional.linear(x, torch.ones(2, x.shape[1]))
    assert all(tensor.dtype is torch.float32 and (tensor == 4096).all() for tensor in found)


def test_what_is_no_sum_is_as_it_was():
    model = model_of(lambda self, x: (x.cos() * x + x.relu(), x.max(0), x.sort(0), x.to(torch.int64)))
    x = torch.randn(5, 6)
    plain = model(x)
    with Wider():
        wide = model(x)
    assert torch.equal(plain[0], wide[0]) and torch.equal(plain[3], wide[3])
    assert all(torch.equal(a, b) for n in (1, 2) for a, b in zip(plain[n], wide[n]))


def test_a_call_in_float64_leaves_the_model_as_it_was():
    def forward(self, x):
        self.cache.add_(x.sum(0))
        return torch.nn.functional.layer_norm(x + self.cache, (3,))

    model = model_of(forward, cache=torch.zeros(3))
    original = Original(model, entry_of(model, {"x": shaped(4, 3)}))
    x = torch.randn(4, 3)
    first = original({"x": x})
    with Wider():
        original({"x": x})
    assert all(torch.equal(a, b) for a, b in zip(first, original({"x": x})))


# ---- states ----------------------------------------------------------------------------------------------------------


def test_states_are_what_calls_wrote_into_them():
    lived, before = Lived(), torch.zeros(32, 4)
    after = before.clone()
    after[:16] = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 10, 0.1, 1]) + 5
    lived.saw("keys", before, after)
    found = lived.states({"keys": torch.zeros(4096, 4), "other": torch.zeros(4096), "steps": torch.zeros(3).long()}, 1)
    assert set(found) == {"keys", "other"} and abs(found["other"].mean()) < 0.1
    torch.testing.assert_close(found["keys"].mean(0), after[:16].mean(0), rtol=0.2, atol=0.5)
    torch.testing.assert_close(found["keys"].std(0), after[:16].std(0), rtol=0.5, atol=0.0)
    assert found["keys"].min() >= after[:16].min() and found["keys"].max() <= after[:16].max()
    again = lived.states({"keys": torch.zeros(4096, 4)}, 1)["keys"]
    assert torch.equal(found["keys"], again) and found["keys"].unique().numel() > 8192


def test_what_says_too_little_says_nothing():
    lived = Lived()
    lived.saw("total", torch.zeros(3), torch.tensor([1.0, torch.inf, torch.nan]))
    lived.saw("flag", torch.zeros(20), torch.ones(20))
    lived.saw("same", torch.ones(20, 2), torch.ones(20, 2))
    for tensor in lived.states({name: torch.zeros(1000) for name in ("total", "flag", "same")}, 0).values():
        assert tensor.isfinite().all() and abs(tensor.mean()) < 0.2 and 0.8 < tensor.std() < 1.2
