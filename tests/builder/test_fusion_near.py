"""Each rule on random graphs that nearly match it: nothing it does, or leaves, changes a number."""

import near
import pytest

from aotair import fusion
from aotair.graph.show import show


def test_every_rule_has_its_near_misses():
    assert near.rules() == [rule.name for rule in fusion.RULES]


@pytest.mark.parametrize("rule", near.rules())
def test_no_random_graph_goes_wrong(rule, request):
    fused = left = 0
    for seed in range(request.config.getoption("--graphs") or 60):
        function, inputs = near.case(rule, seed)
        before, after, edits = near.fused(function, inputs)
        wrong = near.difference(function, inputs, after)
        assert wrong is None, f"{rule} {seed}: {wrong}\n{show(before)}\n{show(after)}"
        fused += edits[rule].count
        left += sum(not account.rewritten for account in edits[rule].accounts)
    assert fused > 3 and left > 3, f"{rule}: {fused} fused, {left} explained"
