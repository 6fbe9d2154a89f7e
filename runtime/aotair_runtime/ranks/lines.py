"""How the rank that drives the others of its host reaches them: by a socket to each, on which who waits sleeps."""

import contextlib
import hmac
import os
import socket
import time
from collections.abc import Sequence

from .words import FOLDER, SilentError

_TOKEN, _PLACE = 16, 2  # bytes that say that who connects was told to, and which of the others it is


class BrokenLineError(RuntimeError):
    """The other end is gone."""


class Listener:
    """Where the others connect to the rank that drives; `address` and `token` are for them alone."""

    def __init__(self) -> None:
        self.address, self.token = str(FOLDER / f"aotair-{os.getpid()}-{os.urandom(8).hex()}.sock"), os.urandom(_TOKEN)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(self.address)
            os.chmod(self.address, 0o600)
            self._socket.listen()
        except OSError:
            self.close()
            raise

    def accepted(self, others: int, seconds: float, timeout: float) -> "Lines":
        """Lines to so many others, in their order, who come within `seconds` (else TimeoutError is raised) and take a
        message within `timeout`. Raises OSError."""
        found: dict[int, socket.socket] = {}
        end = time.monotonic() + seconds
        try:
            while len(found) < others:
                self._socket.settimeout(max(0.001, end - time.monotonic()))
                line, _ = self._socket.accept()
                line.settimeout(max(0.001, end - time.monotonic()))
                place = self._place(line)
                if place is None or place in found or place >= others:
                    line.close()
                else:
                    found[place] = line
        except OSError:
            for line in found.values():
                line.close()
            raise
        return Lines([found[place] for place in sorted(found)], timeout)

    def _place(self, line: socket.socket) -> int | None:
        """Which of the others has connected; None where that is somebody else."""
        said = bytearray(_TOKEN + _PLACE)
        try:
            _read(line, said)
        except (OSError, BrokenLineError):
            return None
        is_told = hmac.compare_digest(bytes(said[:_TOKEN]), self.token)
        return int.from_bytes(said[_TOKEN:], "big") if is_told else None

    def close(self) -> None:
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self.address)


class Lines:
    """The ends of one rank: to all others where it drives, and to who drives it."""

    def __init__(self, ends: Sequence[socket.socket], timeout: float | None):
        self._ends = tuple(ends)
        for end in self._ends:
            end.settimeout(timeout)

    def send(self, message: bytes | bytearray) -> None:
        """To all of them. Raises SilentError where one takes nothing for too long, BrokenLineError where it is gone."""
        for place, end in enumerate(self._ends):
            try:
                end.sendall(message)
            except TimeoutError as error:
                raise SilentError([place + 1]) from error  # the first place is the driver's own
            except OSError as error:
                raise BrokenLineError(f"the line to another rank broke: {error.strerror}") from error

    def receive(self, message: bytearray) -> None:
        """Fill `message`, however long it takes to come. Raises BrokenLineError where nothing comes any more."""
        (end,) = self._ends
        try:
            _read(end, message)
        except OSError as error:
            raise BrokenLineError(f"the line to the rank that drives broke: {error.strerror}") from error

    def close(self) -> None:
        """Who waits at any of its ends goes on."""
        for end in self._ends:
            with contextlib.suppress(OSError):  # the other end is gone already
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def connected(address: str, token: bytes, place: int, timeout: float) -> Lines:
    """The line to the rank that drives, which it is told is that of one of the others, by its place among them. Raises
    OSError."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(timeout)
        line.connect(address)
        line.sendall(token + place.to_bytes(_PLACE, "big"))
    except OSError:
        line.close()
        raise
    return Lines([line], None)


def _read(line: socket.socket, into: bytearray) -> None:
    view = memoryview(into)
    while view:
        count = line.recv_into(view)
        if not count:
            raise BrokenLineError("the other end of the line is closed")
        view = view[count:]
