"""Work in several processes: the same answers and the same errors as in one, and no process is left behind."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from aotair.errors import ProcessError
from aotair.share import DismissedError, copy_at_work, in_team, leave_team, one_thread, shared_out, told

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be copied on this system")


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def fails(number: int) -> int:
    raise ValueError(f"task {number}")


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_answers_come_in_order_however_many_make_them(jobs: int):
    before, begun = children(), []
    tasks = [functools.partial(lambda n: (n, torch.full((n,), float(n))), n) for n in range(20)]
    found = shared_out(tasks, jobs, begun.append)
    assert [number for number, _ in found] == list(range(20))
    assert all(torch.equal(tensor, torch.full((n,), float(n))) for n, tensor in found)
    assert begun == sorted(begun) and children() == before


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_task_that_fails_says_why(jobs: int):
    before = children()
    tasks = [functools.partial(fails if n in (3, 7) else time.sleep, n / 100) for n in range(10)]
    with pytest.raises(ValueError, match=r"task 0\.03"):
        shared_out(tasks, jobs)
    assert children() == before


def test_several_processes_work():
    tasks = [functools.partial(lambda: (time.sleep(0.1), os.getpid())[1]) for _ in range(4)]
    assert len(set(shared_out(tasks, 2))) == 2
    assert set(shared_out(tasks, 1)) == {os.getpid()}


def test_what_cannot_be_handed_over_is_made_here():
    tasks = [lambda: (time.sleep(0.05), lambda: os.getpid())[1] for _ in range(4)]
    assert [found() for found in shared_out(tasks, 2)] == [os.getpid()] * 4


def test_a_process_that_is_killed_is_an_error():
    first, before = os.getpid(), children()

    def dies() -> None:
        time.sleep(0.1)
        if os.getpid() != first:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ProcessError, match="SIGKILL"):
        shared_out([dies, dies, dies], 2)
    assert children() == before


def test_who_interrupts_leaves_no_process_behind():
    before = children()
    with pytest.raises(KeyboardInterrupt), copy_at_work(lambda: time.sleep(60)):
        assert len(children()) == len(before) + 1
        raise KeyboardInterrupt
    assert children() == before


def test_a_copy_ends_with_the_first_process():
    code = """
import os, time
from aotair.share import DismissedError, copy_at_work, in_team, leave_team, one_thread, shared_out, told
with copy_at_work(lambda: time.sleep(60)) as copy:
    print(copy.process, flush=True)
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    process, end = int(done.stdout), time.monotonic() + 10
    while os.path.exists(f"/proc/{process}") and time.monotonic() < end:
        time.sleep(0.05)
    status = Path(f"/proc/{process}/status")
    assert not status.exists() or "(zombie)" in status.read_text()


def test_one_thread_computes_within_the_block():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class Meeting:
    """A team of threads; from the step `lost` on, one of them is not there any more."""

    def __init__(self, count: int, lost: int = 0):
        self.barrier, self.said, self.lost = threading.Barrier(count), [None] * count, lost

    def place(self, number: int) -> "Place":
        return Place(self, number)


class Place:
    def __init__(self, meeting: Meeting, number: int):
        self._meeting, self.number, self.count, self._step = meeting, number, len(meeting.said), 0

    def exchange(self, mine: object) -> list | None:
        self._step += 1
        if self._step == self._meeting.lost:
            return None
        self._meeting.said[self.number] = mine
        self._meeting.barrier.wait(10)
        found = list(self._meeting.said)
        self._meeting.barrier.wait(10)
        return found


def together(meeting: Meeting, work) -> list:
    """What each thread of the team gives: an answer, or what it raises."""

    def run(number: int) -> object:
        try:
            with in_team(meeting.place(number)):
                return work(number)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(len(meeting.said)) as pool:
        return list(pool.map(run, range(len(meeting.said))))


def test_a_team_makes_each_task_once_and_all_hear_of_it():
    made = []

    def work(number: int) -> object:
        tasks = [functools.partial(lambda n: (made.append((number, n)), n * n)[1], n) for n in range(7)]
        return shared_out(tasks, 1), shared_out([lambda: "alone"], 1), told(f"said by {number}")

    answers = together(Meeting(3), work)
    assert answers == [([n * n for n in range(7)], ["alone"], "said by 0")] * 3
    assert sorted(n for _, n in made) == list(range(7)) and all(n % 3 == number for number, n in made)


def test_the_first_of_a_team_goes_on_where_one_is_lost():
    answers = together(
        Meeting(3, lost=2), lambda number: [shared_out([lambda n=n: n for n in range(4)], 1) for _ in "abc"]
    )
    assert answers[0] == [[0, 1, 2, 3]] * 3
    assert all(isinstance(one, DismissedError) for one in answers[1:])


def test_the_first_of_a_team_says_what_fails_anywhere():
    def work(number: int) -> object:
        return shared_out([functools.partial(fails if n == 4 else abs, n) for n in range(6)], 1)

    first, *others = together(Meeting(3), work)
    assert isinstance(first, ValueError) and str(first) == "task 4"
    assert all(isinstance(one, DismissedError) for one in others)


def test_what_comes_after_the_team_is_made_alone():
    def work(number: int) -> object:
        leave_team()
        return shared_out([lambda: number, lambda: number], 1), told(str(number))

    assert together(Meeting(2), work) == [([0, 0], "0"), ([1, 1], "1")]
