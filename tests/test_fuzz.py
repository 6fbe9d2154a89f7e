"""Random graphs through the whole line: outputs, mutated inputs and states are the original's."""

from collections.abc import Callable

import fuzz
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

STEP = st.one_of(
    [
        st.tuples(st.sampled_from(names), *[st.integers(0, 63)] * 3).map(list)
        for names in (*fuzz.GROUPS.values(), fuzz.CACHES, fuzz.VIEWS)
    ]
)
STEPS = st.lists(STEP, min_size=2, max_size=18)
DEFAULT, PARTS = 24, 4  # graphs; tests that share them, and that workers may take apart

# What was once wrong.
FOUND = {
    "a result of cat written in place": [["tanh", 3, 0, 0], ["cat", 6, 6, 0], ["relu_", 7, 0, 0]],
    "an input copied onto itself": [["copy_", 2, 2, 0], ["relu_", 2, 0, 0]],
    "a row of a cache, read again": [["row_set", 2, 5, 1], ["relu_", 3, 0, 0], ["abs", 4, 0, 0]],
    "a state that took the old value of a cache, returned": [["copy_", 4, 3, 0], ["row_set", 0, 0, 1]],
    "writes to a cache, one after the other, through slices": [
        ["index_copy", 0, 0, 0], ["unsqueeze", 50, 0, 0], ["relu", 0, 0, 0], ["index_copy", 0, 0, 0],
        *[["relu", 0, 0, 0]] * 3, ["index_copy", 0, 0, 0], *[["relu", 0, 0, 0]] * 5, ["slice_set", 54, 0, 53],
        *[["relu", 0, 0, 0]] * 2, ["view_set", 0, 0, 0],
    ],
    "a cast that is a copy": [["to", 2, 0, 0], ["add_", 6, 0, 0]],
}  # fmt: skip


def tried(request: pytest.FixtureRequest, default: int = DEFAULT, part: int = 0, parts: int = 1) -> Callable:
    """How many graphs one of `parts` tests tries: the same ones each time, unless more are asked for."""
    count = request.config.getoption("--graphs")
    chosen = settings(
        max_examples=(count or default) // parts,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    return chosen if count else lambda run: seeded(part)(chosen(run))


@pytest.mark.parametrize("name", FOUND)
def test_what_was_once_wrong(name: str):
    assert fuzz.check(FOUND[name]) == ""
    assert fuzz.check(FOUND[name], streams=1) == ""


@pytest.mark.parametrize("seed", [24, 62, 147, 4106, 10020])
def test_seeds_that_were_once_wrong(seed: int):
    assert fuzz.check(fuzz.random_steps(seed)) == ""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_graphs(request, part: int):
    @tried(request, part=part, parts=PARTS)
    @given(STEPS)
    def run(steps: list) -> None:
        assert fuzz.check(steps) in ("", "refused")

    run()


@pytest.mark.timeout(3600)
def test_random_graphs_on_several_streams(request):
    @tried(request, DEFAULT // 2)
    @given(STEPS, st.integers(1, 1000))
    def run(steps: list, streams: int) -> None:
        assert fuzz.check(steps, streams=streams) in ("", "refused")

    run()


def test_the_generator_makes_something():
    """Most lists are graphs that the line takes, and they hold what the passes look for."""
    answers = [fuzz.check(fuzz.random_steps(seed)) for seed in range(12)]
    assert answers.count("") >= 10
