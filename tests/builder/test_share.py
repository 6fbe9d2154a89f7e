"""Work in several processes: the same answers and the same errors as in one, and no process is left behind."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from aotair.errors import ProcessError
from aotair.share import copy_at_work, one_thread, shared_out

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
from aotair.share import copy_at_work
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
