"""Numbers that ranks of one host tell each other through memory that they share."""

import threading
import time

import pytest

from aotair_runtime.ranks.words import SilentError, Words, opened, shared


def several(count: int, length: int) -> list[Words]:
    made = shared(count, length)
    assert made is not None
    memory, path, token = made
    others = [opened(path, token) for _ in range(1, count)]
    assert all(other is not None for other in others)
    return [Words(one, rank, count, length) for rank, one in enumerate([memory, *others])]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_all_hear_what_each_says_turn_after_turn(count: int):
    ranks, heard = several(count, 3), [[] for _ in range(count)]

    def talk(rank: int) -> None:
        for turn in range(200):
            if turn % 50 == rank:
                time.sleep(0.005)
            heard[rank].append(ranks[rank].exchange([turn, rank, -(turn**3)], 20, lambda: False))

    threads = [threading.Thread(target=talk, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    want = [[[turn, rank, -(turn**3)] for rank in range(count)] for turn in range(200)]
    assert all(one == want for one in heard)


def test_who_is_silent_is_not_waited_for_longer_than_was_asked():
    first, _ = several(2, 1)
    start = time.monotonic()
    with pytest.raises(SilentError):
        first.exchange([1], 0.3, lambda: False)
    assert 0.3 <= time.monotonic() - start < 3


def test_who_is_gone_is_not_waited_for():
    first, _ = several(2, 1)
    start = time.monotonic()
    with pytest.raises(SilentError):
        first.exchange([1], 60, lambda: True)
    assert time.monotonic() - start < 5


def test_half_a_word_is_none():
    first, second = several(2, 2)
    second._slot.pack_into(second._memory, second._place(1, 1), 1, 7, 7, 0)  # the number is right, the sum is not
    with pytest.raises(SilentError):
        first.exchange([1, 2], 0.2, lambda: False)


def test_memory_of_somebody_else_is_not_taken(tmp_path):
    made = shared(2, 1)
    assert made is not None
    assert opened(made[1], "0" * 16) is None and opened(str(tmp_path / "none"), made[2]) is None
    (tmp_path / "link").symlink_to(made[1])
    assert opened(str(tmp_path / "link"), made[2]) is None
