"""Who of the ranks is gone, and who is to blame?"""

import os
import subprocess
import sys

import pytest
from torch.distributed import HashStore

from aotair_runtime.ranks import members
from aotair_runtime.ranks.members import Board, here


def board() -> Board:
    """Of two ranks, both of them this process."""
    made = Board(HashStore(), 0, 2, 0.2)
    member = here("program", "tp=2", "cpu", "", "2.13", "0.1")
    made.members = {0: member, 1: member}
    return made


def test_a_process_that_ends_while_it_is_looked_at_has_ended(monkeypatch: pytest.MonkeyPatch):
    class Ends:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def read(self):
            raise ProcessLookupError("No such process")

    monkeypatch.setattr("builtins.open", lambda *_, **__: Ends())
    assert members._ended(os.getpid())


def test_a_process_that_waits_to_be_buried_has_ended():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert members._ended(ended.pid) and not members._ended(os.getpid())
    ended.wait()
    assert members._ended(ended.pid)


@pytest.mark.parametrize("looks", [[[1]], [[], [1]]])
def test_who_was_seen_to_be_gone_is_named(looks: list[list[int]], monkeypatch: pytest.MonkeyPatch):
    """However it looks the next time."""
    made, left = board(), list(looks)
    monkeypatch.setattr(Board, "_gone", lambda _: left.pop(0) if left else [])
    assert made.culprits(0.1).startswith("rank 1 is gone (process ")
