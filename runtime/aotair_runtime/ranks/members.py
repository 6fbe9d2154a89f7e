"""Who are the ranks of a load, and which of them does not do its part? Each writes to a store that all can read."""

import contextlib
import functools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from torch.distributed.distributed_c10d import PrefixStore, Store

from ..errors import RankError, in_line

_POLL = 0.05  # seconds between two looks at the store
_MOST_TEXT = 500
_OPEN = "open"  # where rank 0 says under which name a load meets
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Member:
    """What a rank says of itself before anything is captured; all but the place has to be the same for all. `space`: in
    which numbers of processes mean the same, of one host or one container."""

    program: str  # SHA-256 of the program file
    mesh: str
    torch: str
    aotair: str
    device: str
    options: str
    host: str
    space: str
    pid: int

    @property
    def place(self) -> str:
        """Where the rank runs, for people."""
        return f"process {self.pid} on {self.host}"


ALIKE = {
    "program": "another artifact",
    "mesh": "another mesh",
    "torch": "another torch",
    "aotair": "another aotair",
    "device": "another kind of device",
    "options": "other options of load()",
}


def here(program: str, mesh: str, device: str, options: str, torch_version: str, version: str) -> Member:
    """This process."""
    host, space = socket.gethostname(), ""
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return Member(program, mesh, torch_version, version, device, options, host, space, os.getpid())


class Board:
    """What the ranks of one load have written for each other, in a part of the store that is theirs alone: rank 0 opens
    it at each load under a name of its own, and the others find that in the `lobby`. So a load that failed on some
    ranks leaves nothing behind that the next one would take for its own."""

    def __init__(self, lobby: Store, rank: int, size: int, timeout: float):
        self._lobby, self.rank, self.size, self.timeout = lobby, rank, size, timeout
        self.members: Mapping[int, Member] = {}
        self.store = lobby

    def meet(self, mine: Member) -> None:
        """Wait until every rank has said what it is. Raises RankError where one does not come, or is another."""
        end, own = time.monotonic() + self.timeout, json.dumps(asdict(mine))
        if self.rank == 0:
            self.store = self._opened()
            said, silent = self._read("member", self.timeout, of=range(1, self.size))
            self._lobby.set(_OPEN, "")  # before any of them goes on: nobody enters twice
            said = {0: own, **said}
            self.tell("member", own)
        else:
            found = self._found(end)
            said, silent = {}, [0]
            if found:
                self.store = PrefixStore(found, self._lobby)
                self.tell("member", own)
                said, silent = self._read("member", max(0.0, end - time.monotonic()))
        if silent:
            raise RankError(
                f"{ranks_text(silent)} did not come to the load",
                expected=f"{self.size} ranks within {self.timeout:g} s",
                got=f"{self.size - len(silent)}",
                fix="start as many processes as the mesh has ranks (torchrun --nproc-per-node); all of them load the "
                "artifact at the same time",
            )
        self.members = {rank: Member(**json.loads(text)) for rank, text in said.items()}
        self._refuse_odd()

    def _opened(self) -> Store:
        name = os.urandom(8).hex()
        self._lobby.set(_OPEN, name)
        return PrefixStore(name, self._lobby)

    def _found(self, end: float) -> str:
        """The name that rank 0 has opened; nothing where it does not in time."""
        while time.monotonic() < end:
            with contextlib.suppress(RuntimeError):
                if name := _in_time(1.0, self._look):
                    return name
            time.sleep(0.002)
        return ""

    def _look(self) -> str:
        return self._lobby.get(_OPEN).decode() if self._lobby.check([_OPEN]) else ""

    def _refuse_odd(self) -> None:
        """Raises RankError, the same on every rank, where one of them has come with something else."""
        for field, what in ALIKE.items():
            values = {rank: getattr(member, field) for rank, member in self.members.items()}
            common, odd = odd_ones(values)
            if odd:
                raise RankError(
                    f"{ranks_text(odd)} came with {what}",
                    expected=f"{in_line(common)[:80]}, as {ranks_text([r for r in values if r not in odd])}",
                    got=", ".join(f"rank {rank}: {in_line(values[rank])[:80]}" for rank in odd[:4]),
                    fix=f"look at {self.members[odd[0]].place}",
                )

    def tell(self, what: str, text: str) -> None:
        """Write something that others `hear`."""
        self.store.set(f"{what}/{self.rank}", text)

    def hear(self, what: str, ranks: Sequence[int]) -> dict[int, str]:
        """What these ranks tell, once all have. Raises RankError where one does not."""
        said, silent = self._read(what, self.timeout, of=ranks)
        if silent:
            raise RankError(
                f"{ranks_text(silent)} did not go on with the load", expected=f"an answer in {self.timeout:g} s"
            )
        return said

    def is_gone(self) -> bool:
        """Whether the process of a rank on this host has ended."""
        return bool(self._gone())

    def report(self, text: str, own: bool) -> None:
        """Say that this rank goes on no more; `own`: for a reason of its own, not because others did not come."""
        with contextlib.suppress(RuntimeError):  # whoever kept the store is gone; the others find that out as this one
            _in_time(1.0, lambda: self.store.set(f"end/{self.rank}", json.dumps([own, in_line(text)[:_MOST_TEXT]])))

    def culprits(self, grace: float) -> str:
        """After a call that others did not finish: which ranks are to blame, as far as can be known. Waits `grace`
        seconds for what the others have to say."""
        gone = self._gone()
        said, silent = self._read("end", 0 if gone else grace, enough=_is_own)
        if gone := gone or self._gone():
            return self._named(gone)
        own = {rank: text for rank, (is_own, text) in ((r, json.loads(t)) for r, t in said.items()) if is_own}
        if own:
            return "; ".join(f"rank {rank} failed: {text}" for rank, text in own.items())
        if silent := [rank for rank in silent if rank != self.rank]:
            return self.silent(silent)
        return "the connection between the ranks broke"

    def _there(self, what: str, ranks: Sequence[int]) -> dict[int, str]:
        found = [rank for rank in ranks if self.store.check([f"{what}/{rank}"])]
        return {rank: self.store.get(f"{what}/{rank}").decode() for rank in found}

    def silent(self, ranks: Sequence[int]) -> str:
        """Of ranks that did not say anything in a turn: which of them are gone, or which did not answer."""
        if gone := self._gone():
            return self._named(gone)
        where = ", ".join(self.members[rank].place for rank in ranks)
        return f"{ranks_text(ranks)} did not answer within {self.timeout:g} s ({where})"

    def _named(self, gone: Sequence[int]) -> str:
        return f"{ranks_text(gone)} is gone ({', '.join(self.members[rank].place for rank in gone)})"

    def _gone(self) -> list[int]:
        """The ranks on this host whose process has ended."""
        if (mine := self.members.get(self.rank)) is None:
            return []
        near = [r for r, m in self.members.items() if (m.host, m.space) == (mine.host, mine.space)]
        return [rank for rank in near if _ended(self.members[rank].pid)]

    def _read(
        self,
        what: str,
        seconds: float,
        enough: Callable[[str], bool] | None = None,
        of: Sequence[int] | None = None,
    ) -> tuple[dict[int, str], list[int]]:
        """What each rank has written under a name, waiting so long for all of them, and who has not."""
        end, said, pause = time.monotonic() + seconds, dict[int, str](), 0.001
        while True:
            missing = [rank for rank in (range(self.size) if of is None else of) if rank not in said]
            try:
                said |= _in_time(max(1.0, end - time.monotonic()), functools.partial(self._there, what, missing))
            except RuntimeError:  # whoever kept the store is gone, or stands still
                return said, missing
            missing = [rank for rank in missing if rank not in said]
            if not missing or time.monotonic() >= end or (enough and any(map(enough, said.values()))):
                return said, missing
            time.sleep(pause)
            pause = min(2 * pause, _POLL)


def odd_ones(said: Mapping[int, str], preferred: str = "") -> tuple[str, list[int]]:
    """What most ranks say, and those who say something else; of what as many say, `preferred`, or the greatest."""
    texts = list(said.values())
    common = max(texts, key=lambda text: (texts.count(text), text == preferred, text))
    return common, [rank for rank, text in said.items() if text != common]


def _is_own(text: str) -> bool:
    return bool(json.loads(text)[0])


def _ended(pid: int) -> bool:
    """Whether a process of this host has ended, or only waits to be buried."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between open and read
        return os.path.isdir("/proc/self")
    except OSError:
        return False


def ranks_text(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"rank {shown}" if len(numbers) == 1 else f"ranks {shown}"


def _in_time(seconds: float, call: Callable[[], _Found]) -> _Found:
    """What the call gives. Raises RuntimeError where it does not come back: a store asks a process that may stand
    still, and waits for it however long that is."""
    found: list[_Found] = []

    def work() -> None:
        with contextlib.suppress(RuntimeError):
            found.append(call())

    thread = threading.Thread(target=work, name="a question to the ranks' store", daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        raise RuntimeError("the ranks' store does not answer")
    return found[0]
