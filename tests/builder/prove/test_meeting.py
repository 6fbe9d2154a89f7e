"""Collectives between threads that stand for ranks."""

import threading

import pytest
import torch

from aotair.prove.meeting import Meeting, ThreadRanks
from aotair_runtime.devices.groups import PartedError


def on_ranks(count: int, run) -> list:
    """What `run(rank, group)` gives on each."""
    meeting, results, errors = Meeting(count), [None] * count, []

    def work(rank: int) -> None:
        try:
            results[rank] = run(rank, ThreadRanks(meeting, rank))
        except Exception as error:
            errors.append(error)
            meeting.abandon()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    if errors:
        raise errors[0]
    return results


@pytest.mark.parametrize(("reduce", "want"), [("sum", 6.0), ("max", 3.0), ("min", 1.0), ("product", 6.0)])
def test_reductions(reduce: str, want: float):
    def run(rank, group):
        x = torch.full((2,), rank + 1.0)
        for _ in range(3):
            x.fill_(rank + 1.0)
            group.all_reduce(x, reduce)
        return x.tolist()

    assert on_ranks(3, run) == [[want] * 2] * 3


def test_gathered_scattered_and_exchanged():
    def run(rank, group):
        gathered, scattered, exchanged = torch.empty(4), torch.empty(1), torch.empty(2)
        group.all_gather(gathered, torch.tensor([rank, 10.0 * rank]))
        group.reduce_scatter(scattered, torch.tensor([1.0 + rank, 2.0]), "sum")
        group.all_to_all(exchanged, torch.tensor([10.0 * rank, 10.0 * rank + 1]))
        return gathered.tolist(), scattered.tolist(), exchanged.tolist()

    first, second = on_ranks(2, run)
    assert first == ([0, 0, 1, 10], [3], [0, 10]) and second == ([0, 0, 1, 10], [4], [1, 11])


@pytest.mark.parametrize("wrong", ["shape", "op", "dtype"])
def test_ranks_that_do_different_things(wrong: str):
    def run(rank, group):
        x = torch.zeros(2 + (wrong == "shape") * rank, dtype=torch.float64 if wrong == "dtype" and rank else None)
        group.all_reduce(x, "max" if wrong == "op" and rank else "sum")

    with pytest.raises(PartedError, match="different things"):
        on_ranks(2, run)


def test_a_rank_that_fails_lets_the_others_go():
    def run(rank, group):
        if rank:
            raise ValueError("mine")
        group.all_reduce(torch.zeros(1), "sum")

    with pytest.raises(ValueError, match="mine"):
        on_ranks(2, run)
