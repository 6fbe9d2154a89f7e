"""Intervals for the tests of the planner: strategies that draw them, and what is right for small sets."""

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from aotair.plan.interval import columns
from aotair.plan.search import greedy
from aotair.plan.search.arena import Interval

intervals = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 40), st.integers(0, 15)).map(
        lambda t: Interval(t[0], t[1], t[1] + t[2])
    ),
    max_size=60,
)
alignments = st.sampled_from([1, 64, 512])


def overlap(items: list[Interval], i: int, j: int) -> bool:
    """Whether two intervals that are fixed share a byte at some step."""
    a, b = items[i], items[j]
    together = a.first <= b.last and b.first <= a.last
    return bool(a.size and b.size) and together and a.fixed < b.fixed + b.size and b.fixed < a.fixed + a.size


own_alignments = st.sampled_from([1, 1, 1, 16, 256, 4096])


aligned = intervals.flatmap(
    lambda items: st.lists(own_alignments, min_size=len(items), max_size=len(items)).map(
        lambda own: [replace(item, alignment=a) for item, a in zip(items, own)]
    )
)


def live(items: list[Interval]) -> list[int]:
    return [sum(item.size for item in items if item.first <= step <= item.last) for step in range(60)]


def brute_force(items: list[Interval]) -> int:
    """The least height of all orders of placement: one of them gives the best plan."""
    given = columns(items, 1)
    orders = itertools.permutations(range(len(items)))
    return min(int((greedy.place(given, np.array(order)) + given.sizes).max()) for order in orders)


small = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(0, 3)).map(lambda t: Interval(t[0], t[1], t[1] + t[2])),
    min_size=1,
    max_size=6,
)
