"""Ranks that are called with inputs of their own: every one of them runs the bucket that holds all, and has its own
answers."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import routed
import torch
from hypothesis import given
from hypothesis import strategies as st
from marks import long
from rank_processes import said, started
from rank_scenarios import ids

import aotair
from aotair.prove.prove import all_on_host
from aotair_runtime.artifact.open import open_artifact, read_program
from aotair_runtime.call.buckets import choose
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.errors import ShapeError
from aotair_runtime.format.text import summary
from aotair_runtime.ranks.calls import common_sizes


def own_calls(replica: int) -> list[tuple[int, int]]:
    """The sizes of the calls that a replica makes in the scenario."""
    chance = random.Random(replica)
    return [(chance.randint(1, 3), chance.randint(1, 8)) for _ in range(24)]


def wanted(replica: int) -> list[torch.Tensor]:
    model = routed.Routed().eval().requires_grad_(False)
    return [model(ids(*size, 100 * replica + number)) for number, size in enumerate(own_calls(replica))]


def buckets_of_all(path: Path, replicas: int) -> Counter:
    """How often each bucket has to run: that which holds the largest sizes of each call."""
    (entry,) = read_program(path).entry_points
    together = zip(*map(own_calls, range(replicas)))
    return Counter(choose(entry, tuple(map(max, *sizes))) for sizes in together)


def check_answers(one: dict, path: Path, replicas: int) -> None:
    """Those of one rank, and in which buckets it ran."""
    for (*size, number, got), want in zip(one["answers"], wanted(one["replica"]), strict=True):
        assert tuple(size) == own_calls(one["replica"])[number]
        torch.testing.assert_close(torch.tensor(got), want, atol=1e-5, rtol=1e-5)
    assert sorted(filter(None, one["calls"].values())) == sorted(buckets_of_all(path, replicas).values())


@pytest.mark.parametrize("clone_input", [1, long(0)])
def test_each_rank_has_its_own_answers(tmp_path: Path, clone_input: int):
    path = aotair.build(routed.recipe(dp=2), tmp_path / "a.aotair")
    first, second = said(started(2, "with_own_inputs", tmp_path, path, 1, clone_input), tmp_path)
    for one in (first, second):
        check_answers(one, path, 2)
        assert one["golden"] == [True] * 4
    model = routed.Routed().eval().requires_grad_(False)
    model.before.copy_(ids(1, 4)[:1, 0])  # of the last call that was not refused
    for number, got in enumerate(first["driven"]):
        want = model(ids(1 + number % 3, 1 + number, number))
        torch.testing.assert_close(torch.tensor(got), want, atol=1e-5, rtol=1e-5)
    assert second["driven"] == 8


def test_what_may_not_differ_is_refused_on_every_rank(tmp_path: Path):
    path = aotair.build(routed.recipe(dp=2, tp=2), tmp_path / "a.aotair")
    assert "along dp=2 each rank is called with inputs of its own" in summary(read_program(path))
    for rank, one in enumerate(said(started(4, "with_own_inputs", tmp_path, path, 2), tmp_path)):
        check_answers(one, path, 2)
        assert one["too_large"].startswith("RankError" if rank else "ShapeError")
        assert rank == 0 or "rank 0: refused its inputs" in one["too_large"]
        assert one["within"].startswith("RankError") and "other sizes along dp=2 alone" in one["within"]


def test_no_bucket_that_holds_all_is_said_on_every_rank(tmp_path: Path):
    """Each of the two calls has its bucket; together they have none. Nothing has run: the next call is good."""
    buckets = [{"batch": 1, "seq": 8}, {"batch": 3, "seq": 4}]
    path = aotair.build(routed.recipe(dp=2) | {"buckets": buckets}, tmp_path / "a.aotair")
    model = routed.Routed().eval().requires_grad_(False)
    with all_on_host(open_artifact(path), Allowed()) as ranks, ThreadPoolExecutor(2) as threads:
        entries = [one.entry_points["forward"] for one in ranks.models]

        def refused(entry, size: tuple[int, int]) -> str:
            with pytest.raises(ShapeError) as caught:
                entry.flat([ids(*size)])
            return caught.value.what

        said_ = [*threads.map(refused, entries, [(1, 8), (3, 4)])]
        assert said_[0] == said_[1] and said_[0].endswith("which is what the inputs of all ranks come to")
        for got in threads.map(lambda entry: entry.flat([ids(1, 4)])[0], entries):
            model.before.zero_()
            torch.testing.assert_close(got, model(ids(1, 4)), atol=1e-5, rtol=1e-5)


# ---- which sizes -----------------------------------------------------------------------------------------------------

SIZES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6)


@given(SIZES, st.integers(1, 3))
def test_the_largest_along_each_dimension(sizes: list[tuple[int, int]], alike: int):
    said = [[2, *size, 0] for size in sizes for _ in range(alike)]
    replicas = [(number,) for number in range(len(sizes)) for _ in range(alike)]
    assert common_sizes(said, replicas, 2, ()) == (max(a for a, _ in sizes), max(b for _, b in sizes))
    same = len({size[0] for size in sizes}) == 1
    assert (common_sizes(said, replicas, 2, (0,)) is not None) == same


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([[0, 1], [1, 1]], id="another entry point"),
        pytest.param([[0, 1], [-1, 0]], id="one refused its inputs"),
        pytest.param([[-1, 0], [0, 1]], id="the first refused its inputs"),
        pytest.param([[-2, 0], [-3, 0]], id="no calls at all"),
    ],
)
def test_ranks_that_do_not_call_the_same(said: list[list[int]]):
    assert common_sizes(said, [(0,), (1,)], 1, ()) is None


def test_ranks_with_the_same_inputs_have_the_same_sizes():
    assert common_sizes([[0, 2], [0, 2], [0, 5]], [(0,), (0,), (1,)], 1, ()) == (5,)
    assert common_sizes([[0, 2], [0, 3], [0, 5]], [(0,), (0,), (1,)], 1, ()) is None
