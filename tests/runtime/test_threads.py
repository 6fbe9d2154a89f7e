"""Calls on the CPU with a number of threads of the model's own, whatever the process has."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import aotair
from aotair_runtime.capture import bind
from aotair_runtime.errors import AotairError, ArgumentError

OWN = 2


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """With how many threads each bucket was bound and each replay ran."""
    found, made, run = list[int](), bind.bind, bind.Bound.run

    def noted(self: bind.Bound) -> None:
        found.append(torch.get_num_threads())
        run(self)

    def noted_too(*given: Any) -> bind.Bound:
        found.append(torch.get_num_threads())
        return made(*given)

    monkeypatch.setattr(bind.Bound, "run", noted)
    monkeypatch.setattr("aotair_runtime.capture.graphs.bind", noted_too)
    return found


@pytest.mark.parametrize("capture", ["all", "lazy"])
def test_capture_and_replay_have_the_threads_of_the_model(built, seen: list[int], capture: str):
    path = built("linear")
    seen.clear()  # of the build's own replays, where this test is the first to ask for it
    with aotair.load(path, threads=OWN, capture=capture) as model:
        model(torch.ones(3, 4))
        assert torch.get_num_threads() == 1
    assert set(seen) == {OWN} and len(seen) >= 2


def test_by_default_they_are_those_of_the_process(built, seen: list[int]):
    path = built("linear")
    seen.clear()
    with aotair.load(path) as model:
        model(torch.ones(3, 4))
        torch.set_num_threads(OWN)
        model(torch.ones(3, 4))
    assert set(seen[:-1]) == {1} and seen[-1] == OWN


def test_a_call_that_fails_leaves_the_threads_as_they_were(built, monkeypatch: pytest.MonkeyPatch):
    def fails(self: bind.Bound) -> None:
        assert torch.get_num_threads() == OWN
        raise RuntimeError("planted")

    path = built("linear")
    monkeypatch.setattr(bind.Bound, "run", fails)
    with aotair.load(path, threads=OWN) as model:
        with pytest.raises(RuntimeError, match="planted"):
            model(torch.ones(3, 4))
        assert torch.get_num_threads() == 1


def test_models_with_threads_of_their_own_answer_from_several_threads(built):
    x = torch.randn(3, 4)
    with aotair.load(built("linear")) as model:
        want = model(x).clone()
    wrong = list[int]()

    def calls(count: int) -> None:
        with aotair.load(built("linear"), threads=count, enable_output_clone=True) as model:
            wrong.extend(1 for _ in range(200) if not torch.equal(model(x), want))

    callers = [threading.Thread(target=calls, args=(count,)) for count in (1, 2, 1, 2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2", 1 << 20])
def test_what_is_no_number_of_threads_is_refused(built, count: object):
    with pytest.raises(ArgumentError, match="threads= is wrong"):
        aotair.load(built("linear"), threads=count)


def test_other_devices_have_none(node):
    if node.kind == "cpu":
        pytest.skip("a test of other devices")
    with pytest.raises(AotairError, match="threads= is for the CPU"):
        aotair.load(node.path("linear"), device=node.kind, threads=1)
