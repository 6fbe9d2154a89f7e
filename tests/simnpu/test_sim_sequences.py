"""Are random sequences of calls right on the simulated NPU, in random legal orders of its streams?"""

import pytest
import simnpu
from nodes import Node
from test_sequences import tried


@pytest.mark.timeout(3600)
def test_random_sequences_in_random_orders(request, artifacts):
    tried(request, Node("npu", artifacts / "npu"), 60, schedule=simnpu.schedule)
