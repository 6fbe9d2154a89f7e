"""Are random graphs right on the simulated NPU, with side streams, in random legal orders of them?"""

import fuzz
import pytest
import simnpu
from hypothesis import given
from hypothesis import strategies as st
from test_fuzz import FOUND, STEPS, tried

ORDERS = 12


def orders(_: int):
    return [simnpu.schedule(seed) for seed in range(1, ORDERS)]


@pytest.mark.parametrize("name", FOUND)
def test_what_was_once_wrong(name: str):
    for streams in (0, 1, 2):
        assert fuzz.check(FOUND[name], "npu", streams, orders) == ""


@pytest.mark.timeout(3600)
def test_random_graphs_in_random_orders(request):
    @tried(request, 80 if request.config.getoption("--long") else 50)
    @given(STEPS, st.integers(0, 1000))
    def run(steps: list, streams: int) -> None:
        assert fuzz.check(steps, "npu", streams, orders) in ("", "refused")

    run()
