"""Tokens that go to the ranks of their experts and back: numbers on the host, and what is refused."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aotair.prove.meeting import Meeting, ThreadRanks
from aotair_runtime.devices.exchange import COMBINE, DISPATCH
from aotair_runtime.devices.groups import named
from aotair_runtime.memory.communicators import buffer_bytes

AXIS = "test exchange"


def on_ranks(size: int, function):
    """What a function of a rank's number and of the name of its group gives on each."""
    meeting = Meeting(size)
    groups = {f"{AXIS} {rank}": ThreadRanks(meeting, rank) for rank in range(size)}

    def run(rank: int):
        try:
            return function(rank, f"{AXIS} {rank}")
        except BaseException:
            meeting.abandon()
            raise

    with named(groups), ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def tokens(size: int, count: int, experts: int, chosen: int):
    """For each rank rows, experts of which no two of a token are alike, and weights."""
    for _ in range(size):
        order = torch.rand(count, experts).argsort(-1)[:, :chosen]
        yield torch.randn(count, 5), order.to(torch.int32), torch.rand(count, chosen)


def made_of(rows: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    """What an expert makes of rows."""
    return rows * (expert.unsqueeze(-1) + 1) + expert.unsqueeze(-1)


def exchanged(size: int, experts: int, given) -> list[torch.Tensor]:
    """Of each rank the sums over experts that each compute on the rank that has them."""
    own = experts // size

    def run(rank: int, name: str):
        x, chosen, weights = given[rank]
        rows, _, notes, ends, counts = DISPATCH(x, chosen, experts, size, name)
        assert [tuple(one.shape) for one in (rows, notes, ends, counts)] == [
            tuple(one.shape)
            for number, one in enumerate(DISPATCH(x.to("meta"), chosen.to("meta"), experts, size, ""))
            if number != 1
        ]
        local = torch.searchsorted(ends, torch.arange(len(rows)), right=True)
        made = torch.where((local < own).unsqueeze(-1), made_of(rows, local + rank * own), float("nan"))
        return COMBINE(made, chosen, weights, notes, counts, experts, size, name)

    return on_ranks(size, run)


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.data())
def test_every_token_has_the_sum_of_its_experts(size: int, own: int, count: int, data: st.DataObject):
    experts = size * own
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    sent = list(tokens(size, count, experts, data.draw(st.integers(1, min(experts, 4)))))
    for (x, chosen, weights), got in zip(sent, exchanged(size, experts, sent), strict=True):
        wanted = sum(made_of(x, chosen[:, k]) * weights[:, k : k + 1] for k in range(chosen.shape[1]))
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ([[0, 0]], "the same expert twice"),
        ([[0, 4]], "none of 4"),
        ([[-1, 2]], "none of 4"),
    ],
)
def test_experts_that_a_device_would_mistake_are_refused(chosen: list[list[int]], says: str):
    def run(rank: int, name: str):
        return DISPATCH(torch.ones(1, 3), torch.tensor(chosen, dtype=torch.int32), 4, 2, name)

    with pytest.raises((ValueError, RuntimeError), match=says):
        on_ranks(2, run)


def test_notes_that_are_no_notes_are_refused():
    x, chosen, weights = torch.ones(2, 3), torch.tensor([[0, 1], [2, 3]], dtype=torch.int32), torch.ones(2, 2)
    for change in ("far", "before", "more"):

        def run(rank: int, name: str, change: str = change):
            rows, _, notes, _, counts = DISPATCH(x, chosen, 4, 2, name)
            notes[0] = {"far": 1 << 30, "before": -1}.get(change, notes[0])
            counts[-1] = 1 << 30 if change == "more" else counts[-1]
            return COMBINE(rows, chosen, weights, notes, counts, 4, 2, name)

        with pytest.raises((ValueError, RuntimeError), match=r"notes and counts|another rank"):
            on_ranks(2, run)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, e, w: DISPATCH(x[0], e, 4, 2, ""),
        lambda x, e, w: DISPATCH(x, e.long(), 4, 2, ""),
        lambda x, e, w: DISPATCH(x, e, 5, 2, ""),
        lambda x, e, w: DISPATCH(x, e, 0, 2, ""),
        lambda x, e, w: DISPATCH(x, e.repeat(1, 2), 2, 2, ""),  # more experts of a token than there are
        lambda x, e, w: DISPATCH(x, e.repeat(1, 9), 32, 2, ""),
        lambda x, e, w: COMBINE(x.repeat(2, 1), e.repeat(1, 9), w.repeat(1, 9), e.view(-1), e.view(-1), 32, 2, ""),
        lambda x, e, w: COMBINE(x, e, w, e.view(-1), e.view(-1), 4, 2, ""),
        lambda x, e, w: COMBINE(x, e, w.double(), e.view(-1), e.view(-1), 4, 2, ""),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_calls_of_other_shapes_and_dtypes_are_refused(call, device: str):
    given = torch.ones(2, 3), torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, 2)
    with pytest.raises(ValueError, match=r"moe_distribute|equal parts"):
        call(*(one.to(device) for one in given))


def test_buffers_are_as_large_as_the_documentation_says():
    # DeepSeek-V3 on 16 NPUs: rows of 14336 bytes, which go in 14848.
    assert buffer_bytes(128, 7168, 8, 256) == 2 * 128 * (256 * 14848 + 8 * 14336)
