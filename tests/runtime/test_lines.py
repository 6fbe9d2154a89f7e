"""Lines from the rank that drives to the others of its host: who is let in, what goes over them, how they end."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from aotair_runtime.ranks.lines import BrokenLineError, Lines, Listener, connected
from aotair_runtime.ranks.words import SilentError


@contextlib.contextmanager
def joined(others: int, timeout: float = 5.0) -> Iterator[tuple[Lines, list[Lines]]]:
    """The lines of who drives, and those of so many others."""
    with contextlib.closing(Listener()) as listener, contextlib.ExitStack() as stack:
        came = [connected(listener.address, listener.token, place, 5.0) for place in reversed(range(others))]
        lines = listener.accepted(others, 5.0, timeout)
        for one in (lines, *came):
            stack.callback(one.close)
        yield lines, came[::-1]


def test_each_of_the_others_hears_every_message_whole():
    with joined(3) as (lines, others):
        messages = [os.urandom(size) for size in (1, 40, 1 << 20)]
        heard: list[list[bytes]] = [[] for _ in others]

        def listen(place: int) -> None:
            for message in messages:
                into = bytearray(len(message))
                others[place].receive(into)
                heard[place].append(bytes(into))

        threads = [threading.Thread(target=listen, args=(place,)) for place in range(3)]
        for thread in threads:
            thread.start()
        for message in messages:
            lines.send(message)
        for thread in threads:
            thread.join(10)
        assert heard == [messages] * 3


def test_who_was_not_told_to_come_is_not_let_in():
    with contextlib.closing(Listener()) as listener, contextlib.ExitStack() as stack:
        assert os.stat(listener.address).st_mode & 0o777 == 0o600
        strangers = [
            connected(listener.address, bytes(16), 0, 5.0),  # without the token
            connected(listener.address, listener.token, 2, 5.0),  # of more others than there are
            connected(listener.address, listener.token, 0, 5.0),
            connected(listener.address, listener.token, 0, 5.0),  # once more
        ]
        silent = socket.socket(socket.AF_UNIX)
        silent.connect(listener.address)
        silent.close()
        strangers.append(connected(listener.address, listener.token, 1, 5.0))
        lines = listener.accepted(2, 5.0, 5.0)
        for one in (lines, *strangers):
            stack.callback(one.close)
        lines.send(b"for two")
        for stranger in (strangers[0], strangers[1], strangers[3]):
            with pytest.raises(BrokenLineError):
                stranger.receive(bytearray(7))
        for told in (strangers[2], strangers[4]):
            told.receive(into := bytearray(7))
            assert into == b"for two"


def test_one_that_does_not_come_is_not_waited_for_without_end():
    with contextlib.closing(Listener()) as listener:
        came = connected(listener.address, listener.token, 0, 5.0)
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            listener.accepted(2, 0.2, 5.0)
        assert time.monotonic() - start < 3
        with pytest.raises(BrokenLineError):
            came.receive(bytearray(1))
    assert not os.path.exists(listener.address)


def test_one_that_takes_nothing_is_named():
    with joined(2, timeout=0.2) as (lines, others):
        reader = threading.Thread(target=lambda: others[0].receive(bytearray(1 << 24)))
        reader.start()
        with pytest.raises(SilentError) as caught:
            lines.send(bytes(1 << 24))
        assert caught.value.places == (2,)
        reader.join(10)


def test_an_end_that_is_closed_breaks_the_line():
    with joined(1) as (lines, (other,)):
        broken = threading.Event()

        def wait() -> None:
            with contextlib.suppress(BrokenLineError):
                other.receive(bytearray(1))
                return
            broken.set()

        waits = threading.Thread(target=wait)
        waits.start()
        lines.close()
        waits.join(10)
        assert broken.is_set()
    with joined(1) as (lines, (other,)):
        other.close()
        with pytest.raises(BrokenLineError):
            for _ in range(100):
                lines.send(bytes(1 << 16))
