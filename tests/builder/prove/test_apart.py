"""The bound of the proof, and what the original's own rounding adds to it."""

import pytest
import torch

from aotair.prove.apart import MOVES, ROUNDS, Seen, apart, least
from aotair.prove.runs import Run
from aotair_runtime.format.schema import Tolerance

SCALE = Tolerance(0.0, 0.0, 64 * 2.0**-23)


def run(*tensors: torch.Tensor, moved: tuple[torch.Tensor, ...] | None = None) -> Run:
    names = [f"output {n}" for n in range(len(tensors))]
    return Run(names, list(tensors), lambda: None if moved is None else Run(names, list(moved)))


def test_where_the_original_moves_as_much_it_is_no_fault():
    """A difference of large numbers: its own float64 answer is off, too."""
    want = torch.full((64,), 1.0)
    got, precise = want + 1e-4, want + 1e-5
    assert set(apart(run(want), run(got), SCALE).wrong) == {"output 0"}
    found = apart(run(want, moved=(precise,)), run(got), SCALE)
    assert not found.wrong and found.slack["output 0"] == pytest.approx(MOVES * 1e-5, rel=1e-2)
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


def test_what_was_seen_to_move_before_is_not_asked_again():
    asked = []
    want = torch.full((64,), 4.0)
    first = Run(["x"], [want], lambda: asked.append(1) or Run(["x"], [want * (1 + 1e-5)]))
    known = apart(first, Run(["x"], [want * (1 + 1e-4)]), SCALE).seen
    assert known["x"].share == pytest.approx(MOVES * 1e-5, rel=2e-2) and len(asked) == 1
    smaller = Run(["x"], [want / 2], lambda: asked.append(1) or Run(["x"], [want / 2]))
    assert not apart(smaller, Run(["x"], [want / 2 * (1 + 1e-4)]), SCALE, known).wrong and len(asked) == 1
    assert apart(smaller, Run(["x"], [want / 2 * (1 + 1e-3)]), SCALE, known).wrong and len(asked) == 2


def test_a_number_that_is_far_off_in_another_call_excuses_none():
    """It was not there when the original was asked: the slack stays what it was."""
    want = torch.ones(2, 64)
    known = {"x": Seen(1e-3, 1.0)}
    far = want.clone()
    far[1] = 1e6
    got = far.clone()
    got[0] += 0.5
    assert apart(Run(["x"], [far], lambda: Run(["x"], [far])), Run(["x"], [got]), SCALE, known).wrong


def test_of_several_runs_the_least_counts():
    one, two = Seen(2.0, 1.0), Seen(3.0, 4.0)
    assert least([{"x": one, "y": one}, {}, {"x": two}]) == {"x": two, "y": one}
    assert Seen(0.0, 0.0).slack_of(torch.ones(3)) == 0.0


# ---- half precision --------------------------------------------------------------------------------------------------

HALF = Tolerance(0.0, 0.0, 5e-2)


def halves(value: torch.Tensor, rounded: float | None = None) -> Run:
    """A run whose original is so far from what float32 gives."""
    return Run(["x"], [value], rounded=lambda: {} if rounded is None else {"x": rounded})


def test_where_rounding_to_half_precision_takes_the_original_as_far_it_is_no_fault():
    want = torch.full((64,), 8.0).bfloat16()
    got = (want.float() + 1).bfloat16()
    for rounded, fits in ((None, False), (0.2, False), (0.3, True)):
        found = apart(halves(want, rounded), halves(got), HALF)
        assert bool(found.wrong) != fits
        if fits:
            assert found.slack["x"] == pytest.approx(ROUNDS * rounded)


def test_the_error_says_what_was_asked():
    want = torch.full((64,), 8.0).bfloat16()
    got = (want.float() + 4).bfloat16()
    assert "its own rounding moves it" in apart(halves(want, 0.2), halves(got), HALF).wrong["x"].expected
    assert "its own rounding" not in apart(halves(want), halves(got), HALF).wrong["x"].expected


def test_what_is_let_be_far_off_is_not_proved():
    want = torch.full((64,), 8.0).bfloat16()
    got = (want.float() + 1).bfloat16()
    assert apart(halves(want, 0.3), halves(got), HALF).proved == set(), "0.3 lets it be 1.2 off, of 8"
    assert apart(halves(want), halves(want), HALF).proved == {"x"}
    assert apart(halves(want, 0.11), halves((want.float() + 0.43).bfloat16()), HALF).proved == {"x"}
