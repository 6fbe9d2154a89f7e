"""What makes lists of the host right on a device that bakes them in: updates, their gates, what a failure leaves.

Without an update the numbers are those of another call; without an open gate the device would wait for ever.
"""

import random

import pytest
import simnpu
import torch

import aotair
from aotair_runtime.devices import open_device, updates
from aotair_runtime.devices.host_call import HostCall
from aotair_runtime.errors import BudgetError, UpdateError

X, KEYS = torch.randn(4, 1, 16), torch.randn(4, 6, 16)


@pytest.fixture
def model(node):
    if node.kind != "npu":
        raise pytest.UsageError("these tests want --devices npu")
    return node.load("decode", enable_output_clone=True)


@pytest.fixture
def wants(original):
    reference = original("decode").cpu()
    return lambda *lists: reference(X[: len(lists[0])].cpu(), KEYS[: len(lists[0])].cpu(), *map(list, lists))


def call(model, *lists):
    return model(X[: len(lists[0])].npu(), KEYS[: len(lists[0])].npu(), *lists)


def right(got, want) -> bool:
    return torch.allclose(got.cpu(), want, atol=1e-5, rtol=1e-4)


def test_without_the_updates_the_numbers_are_stale(model, wants, monkeypatch):
    monkeypatch.setattr(HostCall, "takes", lambda *_: False)
    assert right(call(model, [1, 1], [1, 1]), wants([1, 1], [1, 1]))  # what was captured
    for lists in (([6, 5], [4, 3]), ([2, 2], [1, 1]), ([1, 1], [2, 2])):
        got = call(model, *lists)
        assert right(got, wants([1, 1], [1, 1])) and not right(got, wants(*lists))


def test_a_closed_gate_holds_the_replay(model, monkeypatch):
    held = []

    def look(self, stream, lists, changed):
        held.append(simnpu.pending())
        original(self, stream, lists, changed)

    original = updates.UpdatedGraph._update
    monkeypatch.setattr(updates.UpdatedGraph, "_update", look)
    call(model, [2, 3], [4, 5])
    graph = model.forward._plans.last.plan.captured.graph
    graph._gates.opening.replay()  # as a replay leaves them that ended early
    call(model, [3, 4], [5, 6])
    assert len(held) == 2 and all(held)


def test_every_replay_is_right_in_every_legal_order(model, wants):
    draw = random.Random(0)
    for seed in range(1, 121):
        n = draw.choice([1, 2, 3, 4])
        lists = [[draw.randrange(1, 7) for _ in range(n)] for _ in range(2)]
        with simnpu.schedule(seed):
            assert right(call(model, *lists), wants(*lists))
            assert right(call(model, *lists), wants(*lists))


def test_replays_in_a_row_do_not_overtake_each_other(model, wants):
    """Nothing is read back in between: the device may be many calls behind."""
    lists = [([1 + i % 6, 6 - i % 6], [1 + i % 5, 2]) for i in range(12)]
    got = [call(model, *pair) for pair in lists]
    assert all(right(one, wants(*pair)) for one, pair in zip(got, lists, strict=True))


class Refusal(Exception):
    pass


class Dead:
    """A graph that cannot be replayed."""

    def __init__(self, replay):
        self.replay = replay

    def reset(self) -> None:
        pass


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("what", ["begin", "call", "end", "record", "replay"])
def test_an_update_that_fails_is_no_number_and_no_hang(model, wants, monkeypatch, what, nth):
    assert right(call(model, [1, 2], [3, 4]), wants([1, 2], [3, 4]))
    graph, count = model.forward._plans.last.plan.captured.graph, []

    def failing(function):
        def run(*args, **kwargs):
            count.append(1)
            if len(count) == nth:
                raise Refusal("no")
            return function(*args, **kwargs)

        return run

    with monkeypatch.context() as patch:
        if what == "call":
            patch.setattr(HostCall, "__call__", failing(HostCall.__call__))
        elif what == "record":
            patch.setattr(torch.npu.ExternalEvent, "record", failing(torch.npu.ExternalEvent.record))
        elif what == "replay":
            count += [1] * (nth - 1)
            patch.setattr(graph, "_graph", Dead(failing(lambda: None)))
        else:
            patch.setattr(graph._updates, f"update_{what}", failing(getattr(graph._updates, f"update_{what}")))
        with pytest.raises(UpdateError, match="no"):
            call(model, [6, 6], [5, 5])
    torch.npu.synchronize()
    assert not simnpu.pending()
    for lists in (([6, 6], [5, 5]), ([1, 2], [3, 4])):
        assert right(call(model, *lists), wants(*lists))
    reasons = [item.reason for item in model.stats().recaptures]
    assert reasons == ["an update failed"]


def test_gates_are_made_once(model, node):
    """An external event takes memory for good, so a capture made anew uses those that are there."""
    call(model, [1, 2], [3, 4])
    before = simnpu.live_bytes()
    for _ in range(5):
        model.forward.graphs.spoilt(model.forward._plans.last.plan.number, model.forward._plans.last.plan.captured)
        call(model, [1, 2], [3, 4])
    assert simnpu.live_bytes() == before


def test_gates_count_as_events(node):
    used = open_device("npu").usage.events
    with pytest.raises(BudgetError, match="more events"):
        node.load("decode", limits=aotair.Limits(events=used + 5))
    with node.load("decode", limits=aotair.Limits(events=used + 6)) as model:
        assert call(model, [1], [2]).isfinite().all()


def test_updates_run_beside_any_stream_of_the_caller(model, wants):
    """Even when the caller's stream is the one that the updates had."""
    call(model, [1, 2], [3, 4])
    lane = model.forward._plans.last.plan.captured.graph._lane
    for _ in range(3):
        with torch.npu.stream(lane._beside[0]):
            lists = [3, 3], [random.randrange(1, 7), 1]
            assert right(call(model, *lists), wants(*lists))


def test_the_workspace_lies_in_the_pool_once(model):
    call(model, [1, 2, 3, 4], [1, 2, 3, 4])
    scratch = model.forward.graphs.pools[0].space._host_arguments._scratch
    assert len(scratch) == 1 and all(tensor.device.type == "npu" for tensor in scratch.values())
