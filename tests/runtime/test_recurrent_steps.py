"""An LSTM as steps: the numbers of torch's own, and torch's own where the library takes none."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_steps import needs_kernels
from small_steps import run as run_steps

from aotair_runtime.steps import library, table
from aotair_runtime.steps.join import Joined, Named
from aotair_runtime.steps.written import Steps

pytestmark = [needs_kernels, pytest.mark.usefixtures("whatever_pays")]

LSTM = torch.ops.aten.lstm.input


def arguments(
    batch: int = 2, times: int = 5, width: int = 6, hidden: int = 7, layers: int = 1, *, both: bool = False,
    biased: bool = True, batch_first: bool = True, seed: int = 0, size: float = 1.0,
) -> list:  # fmt: skip
    torch.manual_seed(seed)
    layer = torch.nn.LSTM(
        width, hidden, layers, bias=biased, bidirectional=both, batch_first=batch_first
    ).requires_grad_(False)
    ways = 2 if both else 1
    x = torch.randn(*((batch, times) if batch_first else (times, batch)), width) * size
    states = [torch.randn(layers * ways, batch, hidden) for _ in range(2)]
    return [x, states, list(layer._flat_weights), biased, layers, 0.0, False, both, batch_first]


def places(args: list) -> list[torch.Tensor]:
    return [torch.full_like(one, 7.0, memory_format=torch.contiguous_format) for one in LSTM(*args)]


def run(args: list, targets: list[torch.Tensor | None]) -> None:
    run_steps(LSTM, *args, targets=targets)


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, atol=2e-6, rtol=1e-4)


@given(
    st.integers(1, 9), st.integers(1, 12), st.integers(1, 70), st.integers(1, 70), st.integers(1, 3), st.booleans(),
    st.booleans(), st.booleans(), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_numbers(batch, times, width, hidden, layers, both, biased, batch_first, seed):
    args = arguments(batch, times, width, hidden, layers, both=both, biased=biased, batch_first=batch_first, seed=seed)
    targets = places(args)
    run(args, targets)
    for got, want in zip(targets, LSTM(*args)):
        near(got, want)


def halved(args: list) -> list:
    return [args[0].bfloat16(), *([one.bfloat16() for one in group] for group in args[1:3]), *args[3:]]


def widened(args: list) -> list:
    return [args[0].float(), *([one.float() for one in group] for group in args[1:3]), *args[3:]]


needs_pairs = pytest.mark.skipif(
    not library.multiplies_pairs(), reason="the processor has no products of pairs of bfloat16"
)


@needs_pairs
@given(
    st.integers(1, 9), st.integers(1, 12), st.integers(1, 35), st.integers(1, 35), st.integers(1, 3), st.booleans(),
    st.booleans(), st.booleans(), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_numbers_of_bfloat16(batch, times, width, hidden, layers, both, biased, batch_first, seed):
    sizes = (batch, times, 2 * width, 2 * hidden, layers)
    args = halved(arguments(*sizes, both=both, biased=biased, batch_first=batch_first, seed=seed))
    targets = places(args)
    run(args, targets)
    for got, want in zip(targets, LSTM(*widened(args))):
        torch.testing.assert_close(got.float(), want, atol=0.02, rtol=0.02)


@needs_pairs
def test_numbers_of_bfloat16_that_saturate_and_those_that_are_none():
    args = halved(arguments(3, 6, 6, 8, size=1e4))
    args[0][1, 2, 3], args[0][2, 0, 0] = torch.nan, torch.inf
    targets = places(args)
    run(args, targets)
    for got, want in zip(targets, LSTM(*widened(args))):
        torch.testing.assert_close(got.float(), want, atol=0.02, rtol=0.02, equal_nan=True)
    assert targets[0][0].isfinite().all() and targets[0][1, 2:].isnan().any()


@pytest.mark.parametrize("made", [list, pytest.param(halved, marks=needs_pairs)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_same_bits_for_any_number_of_threads(threads: int, made: Callable[[list], list]):
    args = made(arguments(4, 32, 128, 256, 2, both=True))
    alone, targets, before = places(args), places(args), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        run(args, alone)
        torch.set_num_threads(threads)
        run(args, targets)
    finally:
        torch.set_num_threads(before)
    for got, one, want in zip(targets, alone, LSTM(*args)):
        assert torch.equal(got, one)
        if made is list:
            near(got, want)


@pytest.mark.parametrize("left_out", [(0,), (1,), (2,), (1, 2), (0, 2)])
def test_results_that_nobody_has(left_out: tuple[int, ...]):
    args = arguments(layers=2, both=True)
    targets: list[torch.Tensor | None] = [None if n in left_out else one for n, one in enumerate(places(args))]
    run(args, targets)
    for got, want in zip(targets, LSTM(*args)):
        if got is not None:
            near(got, want)


def test_numbers_that_saturate_and_those_that_are_none():
    args = arguments(3, 6, size=1e4)
    args[0][1, 2, 3], args[0][2, 0, 0] = torch.nan, torch.inf
    targets = places(args)
    run(args, targets)
    for got, want in zip(targets, LSTM(*args)):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4, equal_nan=True)
    assert targets[0][0].isfinite().all() and targets[0][1, 2:].isnan().any()


def test_inputs_with_gaps_in_time_and_batch():
    args = arguments(3, 4)
    args[0] = torch.randn(6, 8, 6)[::2, 1::2]
    wide = torch.full((3, 8, 7), 7.0)
    targets = [wide[:, ::2], *places(args)[1:]]
    run(args, targets)
    for got, want in zip(targets, LSTM(*args)):
        near(got, want)
    assert (wide[:, 1::2] == 7).all(), "what lies between stays"


def _changed(args: list, place: int, value: object) -> list:
    return [*args[:place], value, *args[place + 1 :]]


DECLINED = {
    "rows of bfloat16 that end within a pair": halved,
    "float16": lambda a: [a[0].half(), *([one.half() for one in group] for group in a[1:3]), *a[3:]],
    "two dtypes": lambda a: _changed(a, 0, a[0].double()),
    "one sequence without a batch": lambda a: _changed(a, 0, a[0][0]),
    "no times": lambda a: _changed(a, 0, a[0][:, :0]),
    "another width": lambda a: _changed(a, 0, a[0][..., :-1]),
    "columns apart": lambda a: _changed(a, 0, a[0].transpose(1, 2).contiguous().transpose(1, 2)),
    "a state of fewer rows": lambda a: _changed(a, 1, [a[1][0][:, :1], a[1][1]]),
    "one state": lambda a: _changed(a, 1, a[1][:1]),
    "a weight of fewer rows": lambda a: _changed(a, 2, [a[2][0][:-1], *a[2][1:]]),
    "a bias too short": lambda a: _changed(a, 2, [*a[2][:2], a[2][2][:-1], a[2][3]]),
    "a bias with gaps": lambda a: _changed(a, 2, [*a[2][:2], torch.zeros(56)[::2], a[2][3]]),
    "a projection": lambda a: _changed(a, 2, [*a[2], a[2][0]]),
    "weights of one layer for two": lambda a: _changed(a, 4, 2),
    "no layers": lambda a: _changed(a, 4, 0),
    "dropout": lambda a: _changed(_changed(a, 5, 0.5), 6, True),
}


@pytest.mark.parametrize("what", sorted(DECLINED))
def test_what_is_torchs(what: str):
    args = arguments()
    targets = places(args)
    assert table.steps(LSTM, args, {}, targets) is not None
    assert table.steps(LSTM, DECLINED[what](args), {}, targets) is None


def test_places_that_do_not_fit_or_lie_over_each_other():
    args = arguments()
    out, h, c = places(args)
    for wrong in (
        [out[:, :-1], h, c],
        [out.double(), h, c],
        [out, h[..., :-1], c],
        [out[0], h, c],
        [out, h],
        [out, h, h],
    ):
        assert table.steps(LSTM, args, {}, wrong) is None
    assert table.steps(LSTM, args, {}, None) is None
    assert table.steps(LSTM, args, {}, [out, args[1][0], c]) is None, "a state is read after it is written"
    assert table.steps(LSTM, args, {}, [out[:, :1].expand(2, 5, 7), h, c]) is None, "written over itself"


def test_where_registers_are_narrow_it_is_torchs(monkeypatch: pytest.MonkeyPatch):
    args = arguments()
    monkeypatch.setattr(library, "is_wide", lambda: False)
    assert table.steps(LSTM, args, {}, places(args)) is None


def test_without_products_of_pairs_that_of_bfloat16_is_torchs(monkeypatch: pytest.MonkeyPatch):
    args = halved(arguments(hidden=8))
    monkeypatch.setattr(library, "multiplies_pairs", lambda: False)
    assert table.steps(LSTM, args, {}, places(args)) is None
    monkeypatch.setattr(library, "multiplies_pairs", lambda: True)
    assert table.steps(LSTM, args, {}, places(args)) is not None


@pytest.mark.parametrize(("done", "made"), [(0, "abc"), (1, "bc"), (2, "bc"), (3, "c"), (4, "")])
def test_what_was_begun_is_made_anew(done: int, made: str):
    """A step that there is no memory for: torch makes all of what it is a part of, and what follows."""
    calls: list[str] = []
    small = [
        (Named(lambda one=one: calls.append(one), one), Steps(b"", n)) for one, n in (("a", 1), ("b", 2), ("c", 1))
    ]
    Joined(small, lambda *_: done)()
    assert "".join(calls) == made
