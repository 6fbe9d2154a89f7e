"""Are random sequences of calls right, whatever tensors they are given? Also that the search finds what is planted."""

import pytest
import sequences
from nodes import Node

from aotair_runtime.call import call_plan, entry
from aotair_runtime.memory import overlap

DEFAULT = 300


def tried(request: pytest.FixtureRequest, node: Node, default: int = DEFAULT, **how) -> None:
    count = request.config.getoption("--sequences") or default
    for seed in range(count):
        assert sequences.check(seed, node, **how) == ""


@pytest.mark.timeout(3600)
def test_random_sequences(request, artifacts):
    tried(request, Node("cpu", artifacts / "cpu"))


@pytest.mark.parametrize(
    "fault",
    ["nothing is set aside", "inputs are used in place in the pool", "mutated inputs may share memory"],
)
def test_planted_faults_are_found(fault: str, artifacts, monkeypatch):
    if fault == "nothing is set aside":
        monkeypatch.setattr(entry, "destroyed", lambda *_: [])
    elif fault == "inputs are used in place in the pool":
        monkeypatch.setattr(call_plan, "meet", lambda *_: False)
    else:
        monkeypatch.setattr(overlap.Spans, "meets", lambda *_: False)
    node = Node("cpu", artifacts / "cpu")
    assert any(sequences.check(seed, node) for seed in range(300))
