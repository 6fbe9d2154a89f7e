"""The ranks that run one program together, as one of them sees them: joined at a load, left at the model's end."""

import atexit
import contextlib
import functools
import json
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from ..devices.groups import ProcessRanks, connect, forget, register
from ..errors import AotairError, ArgumentError, ClosedError, RankError, in_line
from ..format.mesh import mesh_text, partners, ranks_of, replica_of, spoken_axes
from ..format.schema import Axis, Program
from ..memory.communicators import expert_buffers, plain_buffer
from .calls import MOST_SHOWN, called_differently, common_sizes
from .lines import Lines, Listener, connected
from .members import Board, Member, odd_ones, ranks_text
from .words import SilentError, Words, opened, shared

TIMEOUT = 300.0  # seconds
_MOST_TIMEOUT = 1e7
_COME = 10.0  # seconds until a rank of the same host is connected that was told to
_GRACE = 5.0  # seconds that a rank has, at the most, to say why it goes on no more
_DONE, _FAILED = -2, -3  # what a rank says instead of the number of an entry point, beside REFUSED
_FOREVER = timedelta(days=3650)  # a rank that follows has nothing to do until it is driven


@dataclass(frozen=True)
class Wish:
    """Which ranks a load is for: a process group of torch.distributed, by default all, and how many seconds a rank is
    waited for."""

    group: dist.ProcessGroup | None = None
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        number = isinstance(self.timeout, (int, float)) and not isinstance(self.timeout, bool)
        if not number or not 0 < self.timeout < _MOST_TIMEOUT:
            raise ArgumentError("rank_timeout= is wrong", expected="seconds, more than 0", got=repr(self.timeout)[:80])
        if not isinstance(self.group, dist.ProcessGroup | None):
            raise ArgumentError(
                "group= is wrong", expected="a process group of torch.distributed", got=repr(self.group)[:80]
            )


class Party(Protocol):
    """The ranks that run a program together, as one of them sees them: `rank`; `groups`: by axis of the mesh the name
    of the group that collectives meet; `drives`: whether it is the first of those that make each call together;
    `at_end`: what is called when they part because one of them failed."""

    rank: int
    drives: bool
    groups: tuple[str, ...]
    at_end: Callable[[], None]

    def agree(self, what: int, sizes: Sequence[int], fixed: Collection[int] = ()) -> Sequence[int]: ...

    def all_or_none(self, what: str) -> contextlib.AbstractContextManager[None]: ...

    def refuse_unlike(self, what: str, mark: Callable[[], str], place: str) -> None: ...

    def failure(self, error: Exception, own: bool = False) -> Exception: ...

    def broadcast(self, message: bytearray) -> None: ...

    def close(self) -> None: ...


_alive: "weakref.WeakSet[Processes]" = weakref.WeakSet()  # that make calls, and have not parted


class Processes:
    """A party of processes, over torch.distributed."""

    def __init__(self, program: Program, wish: Wish, device: str):
        self.mesh, self._made = program.mesh, list[ProcessRanks]()
        self._dims = [entry.dims for entry in program.entry_points]
        self._most_sizes = max(map(len, self._dims))
        self.at_end: Callable[[], None] = lambda: None
        self._timeout = timedelta(seconds=wish.timeout)
        _join(self.mesh, self._timeout)
        world = wish.group or dist.group.WORLD
        assert world is not None
        members = dist.get_process_group_ranks(world)
        self.rank, self.groups, self._closed = dist.get_rank(world), tuple[str, ...](), False
        self._words: Words | None = None
        self._lines: Lines | None = None
        self._turn = 0  # how often the ranks have told each other what they are about to do
        _check_size(self.mesh, len(members))
        self._callers = partners(self.mesh, spoken_axes(program), self.rank)
        self._own, self._buffers, self._plain = program.own_inputs, expert_buffers(program), plain_buffer(program)
        self._replicas = [replica_of(self.mesh, self._own, rank) for rank in self._callers]
        self.drives = self.rank == self._callers[0]
        lobby = PrefixStore(f"aotair/{'-'.join(map(str, members))}", dist.distributed_c10d._get_default_store())
        self.board = Board(lobby, self.rank, len(members), wish.timeout)
        self._device = device

    def meet(self, mine: Member) -> None:
        """Compare what each rank came with, then connect the groups. Raises RankError, on every rank."""
        self.board.meet(mine)
        _close_at_exit(self)
        with self._named_failures():
            self._control = self._connected("calls", self._callers, "cpu", self._timeout)
            names = []
            for number, axis in enumerate(self.mesh):
                others = partners(self.mesh, {number}, self.rank)
                made = self._connected(f"axis {axis.name}", others, self._device, self._timeout, self._plain)
                if self._device == "npu" and number in self._buffers:
                    apart = (f"experts {axis.name}", others, self._device, self._timeout, self._buffers[number])
                    made.for_experts = self._connected(*apart, for_experts=True).known_as or ""
                names.append(register(made, axis.name, made.known_as))
            self.groups = tuple(names)
        self._words = self._shared_words()
        self._lines = None if self._words is None else self._driving_lines()
        if self._lines is None:
            with self._named_failures():
                self._driven = self._connected("driven", self._callers, "cpu", _FOREVER)

    def _connected(
        self,
        name: str,
        ranks: Sequence[int],
        device: str,
        timeout: timedelta,
        buffer: int | None = None,
        for_experts: bool = False,
    ) -> ProcessRanks:
        """These ranks, connected to each other."""
        store = PrefixStore(f"{name}/{'-'.join(map(str, ranks))}", self.board.store)
        made = connect(device, store, ranks.index(self.rank), len(ranks), timeout, buffer, for_experts)
        self._made.append(made)
        return made

    def _shared_words(self) -> Words | None:
        """Memory that all ranks of a call see; None where they are on several hosts, or in several containers."""
        first, length, made = self._callers[0], 1 + self._most_sizes, None
        if self.rank == first:
            made = shared(len(self._callers), length)
            self.board.tell("words", json.dumps(None if made is None else made[1:]))
            memory = None if made is None else made[0]
        else:
            told = json.loads(self.board.hear("words", [first])[first])
            memory = None if told is None else opened(*told)
        try:
            self.board.tell("sees", str(memory is not None))
            seen = self.board.hear("sees", self._callers)
        finally:
            if made is not None:
                os.unlink(made[1])
        if memory is None or any(text != "True" for text in seen.values()):
            return None
        return Words(memory, self._callers.index(self.rank), len(self._callers), length)

    def _driving_lines(self) -> Lines | None:
        """Of a rank that drives others of its host, or is driven; None where they cannot be made."""
        (first, *others), made = self._callers, None
        seconds = self._timeout.total_seconds()
        if self.rank == first:
            with contextlib.suppress(OSError), contextlib.closing(Listener()) as listener:
                self.board.tell("listens", json.dumps([listener.address, listener.token.hex()]))
                made = listener.accepted(len(others), min(_COME, seconds), seconds)
            if made is None:
                self.board.tell("listens", "null")
        elif told := json.loads(self.board.hear("listens", [first])[first]):
            with contextlib.suppress(OSError):
                made = connected(told[0], bytes.fromhex(told[1]), others.index(self.rank), min(_COME, seconds))
        self.board.tell("line", str(made is not None))
        if all(text == "True" for text in self.board.hear("line", self._callers).values()):
            return made
        if made is not None:
            made.close()
        return None

    # ---- agreement ------------------------------------------------------------------------------------------------

    def agree(self, what: int, sizes: Sequence[int], fixed: Collection[int] = ()) -> Sequence[int]:
        """Whether all ranks are about to make the same call: the entry point of that number, or REFUSED, with these
        sizes; and which sizes the bucket has to hold that all take. One message. Raises RankError, on every rank, where
        they differ; of ranks with inputs of their own, in the entry point, or along a dimension that is `fixed`."""
        mine = (what, *sizes)
        said = self._exchange(mine)
        if all(one == said[0] for one in said):
            return sizes
        if (common := common_sizes(said, self._replicas, len(sizes), fixed)) is not None:
            return common
        self._refuse_failed(said)
        raise called_differently(said, self._callers, self._dims, self._own_axes())

    def _own_axes(self) -> str:
        """Along which of its axes the ranks that make this call have inputs of their own; empty where none has."""
        if len({*self._replicas}) == 1:
            return ""
        return mesh_text([self.mesh[number] for number in self._own])

    @contextlib.contextmanager
    def all_or_none(self, what: str) -> Iterator[None]:
        """What is done within succeeds on every rank, or raises on every rank: where it failed its own error, on the
        others RankError."""
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
        if isinstance(failure, (RankError, ClosedError)):
            raise failure
        if failure is not None and not self._closed:
            self.board.tell(f"failed{self._turn}", f"{what}: {_first_line(failure)}")
        said = self._exchange((_DONE if failure is None else _FAILED,))
        if failure is not None:
            raise failure
        self._refuse_failed(said)
        if any(one[0] != _DONE for one in said):
            raise RankError(f"the other ranks were called instead: {what} is for all of them")

    def refuse_unlike(self, what: str, mark: Callable[[], str], place: str) -> None:
        """Raises RankError, the same on every rank, where what one of them has from `place` has another mark: it has
        other `what`."""
        name = f"alike{self._turn}"
        with self.all_or_none(f"comparing {what}"):
            self.board.tell(name, json.dumps([mark(), place]))
        heard = {rank: json.loads(told) for rank, told in self.board.hear(name, self._callers).items()}
        common, odd = odd_ones({rank: text for rank, (text, _) in heard.items()}, heard[self._callers[0]][0])
        if odd:
            shown = "; ".join(f"rank {rank}: {in_line(heard[rank][1])[:200]}" for rank in odd[:MOST_SHOWN])
            others = next(where for text, where in heard.values() if text == common)
            raise RankError(
                f"{ranks_text(odd)} came with other {what} than the others",
                expected=f"those of {in_line(others)[:200]} on every rank",
                got=shown,
                fix="give every rank the same files",
            )

    def _refuse_failed(self, said: Sequence[Sequence[int]]) -> None:
        """Raises RankError with what the others say, where they have failed in this turn."""
        failed = [rank for rank, one in zip(self._callers, said, strict=True) if one[0] == _FAILED]
        if failed:
            texts = self.board.hear(f"failed{self._turn - 1}", failed)
            raise RankError("; ".join(f"rank {rank} failed: {text}" for rank, text in texts.items()))

    def _exchange(self, mine: Sequence[int]) -> list[list[int]]:
        """What every rank says in this step, in their order."""
        if self._closed:
            raise ClosedError("the ranks have parted", fix="load the artifact again on all of them")
        length = 1 + self._most_sizes
        self._turn += 1
        if self._words is not None:
            said = [*mine, *[0] * (length - len(mine))]
            try:  # not `_named_failures`: each call comes through here, and a context manager takes a microsecond
                return self._words.exchange(said, self._timeout.total_seconds(), self.board.is_gone)
            except SilentError as error:
                raise self.failure(error) from error
        word = torch.tensor([*mine, *[0] * (length - len(mine))], dtype=torch.int64, device="cpu")
        heard = word.new_empty(len(self._callers) * length)
        with self._named_failures():
            self._control.all_gather(heard, word)
        found: list[list[int]] = heard.view(-1, length).tolist()
        return found

    @contextlib.contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            yield
        except AotairError:
            raise
        except RuntimeError as error:
            raise self.failure(error) from error

    def failure(self, error: Exception, own: bool = False) -> RankError:
        """Why a call that all ranks make did not come to its end here: who is to blame, as far as can be known. This
        rank takes no part in anything from now on. `own`: it failed for a reason of its own."""
        self.board.report(_first_line(error), own)
        self._leave()
        self.at_end()
        if isinstance(error, SilentError):
            who = self.board.silent([self._callers[place] for place in error.places])
        else:
            who = "this rank failed" if own else self.board.culprits(min(_GRACE, self._timeout.total_seconds()))
        return RankError(
            f"the ranks cannot go on together: {who}",
            got=_first_line(error),
            fix="the model is closed here: load it again once all ranks are there",
        )

    def broadcast(self, message: bytearray) -> None:
        """The message of the rank that drives becomes that of all that make its calls, who wait for it."""
        if self._closed:
            raise ClosedError("the ranks have parted", fix="load the artifact again on all of them")
        with self._named_failures():
            if self._lines is None:
                self._driven.broadcast(torch.frombuffer(message, dtype=torch.uint8))
            elif self.drives:
                self._lines.send(message)
            else:
                self._lines.receive(message)

    # ---- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no part any more; what others still ask of this rank fails there, and names it."""
        if not self._closed and self.board.members:
            self.board.report("it closed the model", own=True)
        self._leave()

    def _leave(self) -> None:
        """Let go of the groups, so that nobody waits for this rank."""
        if self._closed:
            return
        self._closed = True
        forget(self.groups)
        if self._words is not None:
            self._words.close()
        if self._lines is not None:
            self._lines.close()
        for made in self._made:
            made.close()
        self._made.clear()


def _first_line(error: BaseException) -> str:
    text = error.what if isinstance(error, AotairError) else f"{type(error).__name__}: {error}"
    return text.strip().partition("\n")[0][:300]


def ranks_here(wish: Wish) -> int:
    """Of how many ranks this process is one: those of the group that is wished for, else all that torchrun has started,
    or this one alone. Raises RankError where they do not find each other."""
    if wish.group is not None:
        return dist.get_world_size(wish.group)
    return 1 if _joined(timedelta(seconds=wish.timeout)) is not None else dist.get_world_size()


def _join(mesh: Sequence[Axis], timeout: timedelta) -> None:
    """Make the process group of all ranks where there is none, from what torchrun says."""
    alone, count = _joined(timeout), ranks_of(mesh)
    if alone is not None:
        raise RankError(
            f"the artifact is for {count} ranks together ({mesh_text(mesh)}), and this process is alone",
            expected="a process group of torch.distributed, or the environment that torchrun sets",
            got=_first_line(alone),
            fix=f"torchrun --nproc-per-node {count} PROGRAM, which loads the artifact in each process",
        ) from alone


def _joined(timeout: timedelta) -> ValueError | None:
    """Make the process group where there is none; what says that this process is alone, if it is. Raises RankError
    where ranks do not find each other."""
    if dist.is_initialized():
        return None
    try:
        dist.init_process_group("gloo", timeout=timeout)
        atexit.register(_end_group)
    except ValueError as error:  # torch looks for what torchrun sets, and says what is not there
        return error
    except RuntimeError as error:
        raise RankError(f"the ranks did not find each other: {_first_line(error)}") from error
    return None


def _end_group() -> None:
    """Let go of the process group that a load has made."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _close_at_exit(party: "Processes") -> None:
    """Before the process group goes: Gloo's threads that still run at the end of the process would abort it."""
    _register()
    _alive.add(party)


@functools.cache
def _register() -> None:
    atexit.register(_close_all)


def _close_all() -> None:
    for party in [*_alive]:
        party.close()


def _check_size(mesh: Sequence[Axis], size: int) -> None:
    count = ranks_of(mesh)
    if size != count:
        raise RankError(
            "the artifact is for another number of ranks",
            expected=f"{count} ({mesh_text(mesh)})",
            got=f"{size}",
            fix=f"torchrun --nproc-per-node {count}, or load(group=…) with the ranks that run it together",
        )
