"""How is work shared out to several processes? They are copies of this one: each answers what this one would. Or they
do the same work on other machines, and tell each other what each has found in a part of it."""

import contextlib
import contextvars
import logging
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

import torch

from .errors import ProcessError

log = logging.getLogger("aotair")

T = TypeVar("T")
_NUMBER = 4  # bytes of a task's number
_MOST = 4096  # tasks whose numbers a pipe holds for certain


def usable_cores() -> int:
    """How many processes can work at the same time; 1 where processes cannot be copied."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "fork") and hasattr(os, "sched_getaffinity") else 1


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within the block torch computes in this thread alone. Sums that several threads share may differ in the last bit,
    and a copy of a process has none of its threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def shared_out(
    tasks: Sequence[Callable[[], T]], jobs: int, begun: Callable[[int], None] = lambda number: None
) -> list[T]:
    """What each task gives, in their order, made by as many processes, of which this is one; what they give is pickled,
    and nothing else that they do is seen here. `begun` hears how many tasks have been begun.

    Where this process is in a team, each of its processes makes a part of them, as so many. Raises what the first task
    raises that does so, and ProcessError where a process is killed; none is left behind.
    """
    found: dict[int, T] = {}
    if (team := _team.get()) is not None and len(tasks) > 1:
        found = _made_by_all(team, tasks, jobs, begun)
    elif jobs > 1 and 1 < len(tasks) <= _MOST:
        found = _answers(tasks, min(jobs, len(tasks)) - 1, begun)
    for number, task in enumerate(tasks):
        if number not in found:  # nobody came to it, or it fails: here too, and with its own words
            begun(number)
            found[number] = task()
    return [found[number] for number in range(len(tasks))]


def _answers(tasks: Sequence[Callable[[], T]], others: int, begun: Callable[[int], None]) -> dict[int, T]:
    """What tasks give, by number, up to the first that fails: all before it are there."""
    queue, fill = os.pipe()
    os.write(fill, b"".join(number.to_bytes(_NUMBER, "big") for number in range(len(tasks))))
    os.close(fill)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, queue)
        copies = [stack.enter_context(copy_at_work(lambda: _work(tasks, queue))) for _ in range(others)]
        found = _work(tasks, queue, begun)
        for copy in copies:
            found |= copy.answer() or {}
    return found


def _work(
    tasks: Sequence[Callable[[], T]], queue: int, begun: Callable[[int], None] = lambda number: None
) -> dict[int, T]:
    """Take one task after the other, until there is none or one fails."""
    found: dict[int, T] = {}
    with one_thread():
        while number := os.read(queue, _NUMBER):
            task = int.from_bytes(number, "big")
            begun(task)
            try:
                found[task] = tasks[task]()
            except Exception as error:
                log.debug("task %d fails in process %d: %s", task, os.getpid(), error, exc_info=True)
                while os.read(queue, _NUMBER):  # nobody begins another one
                    pass
    return found


# ---- a team ----------------------------------------------------------------------------------------------------------


class Team(Protocol):
    """Processes of several machines that do the same work, step by step: this is the one of that number, from 0, of so
    many."""

    number: int
    count: int

    def exchange(self, mine: object) -> list[Any] | None:
        """What each of them gives in this step, in their order; None once one of them is lost."""


class DismissedError(BaseException):
    """The first process of the team goes on alone, and this is another one."""


_team: contextvars.ContextVar[Team | None] = contextvars.ContextVar("team", default=None)
_handed_over: contextvars.ContextVar[bool] = contextvars.ContextVar("handed_over", default=False)


@contextlib.contextmanager
def in_team(team: Team) -> Iterator[None]:
    """Within the block, tasks that are shared out are those of the team. Raises DismissedError in all but the first
    process where one is lost, or fails at a task: the first goes on alone."""
    token = _team.set(team)
    try:
        yield
    finally:
        _team.reset(token)


def leave_team() -> None:
    """What comes from here on is not for the team."""
    _team.set(None)


def told(mine: str) -> str:
    """What the first process of the team says here; without a team, the same."""
    said = None if _team.get() is None else _exchanged(mine)
    return mine if said is None else str(said[0])


def is_handed_over() -> bool:
    """Whether what a task gives now is for other processes too."""
    return _handed_over.get()


def _exchanged(mine: object) -> list[Any] | None:
    """What all processes give; None in the first one where others are lost, which leaves the team."""
    team = _team.get()
    assert team is not None, "asked before"
    said = team.exchange(mine)
    if said is None:
        if team.number:
            raise DismissedError
        log.warning("a process that shares the work of the build is lost: the first one goes on alone")
        leave_team()
    return said


def _made_by_all(team: Team, tasks: Sequence[Callable[[], T]], jobs: int, begun: Callable[[int], None]) -> dict[int, T]:
    """What the tasks give, by number: each process makes every so-manieth. Where one fails, the first process makes it
    itself, to fail in its own words."""
    mine = range(team.number, len(tasks), team.count)
    token = _handed_over.set(True)
    try:
        own = [tasks[number] for number in mine]
        if min(jobs, len(own)) > 1 and len(own) <= _MOST:
            made = _answers(own, min(jobs, len(own)) - 1, lambda place: begun(mine[place]))
        else:
            made = _in_turn(own, lambda place: begun(mine[place]))
    finally:
        _handed_over.reset(token)
    own_found = {mine[place]: answer for place, answer in made.items()}
    found: dict[int, T] = {}
    for theirs in _exchanged(own_found) or [own_found]:
        found |= theirs
    if len(found) < len(tasks) and _team.get() is not None:
        if team.number:
            raise DismissedError
        leave_team()
    return found


def _in_turn(tasks: Sequence[Callable[[], T]], begun: Callable[[int], None]) -> dict[int, T]:
    """What tasks give, by number, up to the first that fails."""
    found: dict[int, T] = {}
    for number, task in enumerate(tasks):
        begun(number)
        try:
            found[number] = task()
        except Exception as error:
            log.debug("task %d fails: %s", number, error, exc_info=True)
            break
    return found


# ---- one process -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copy:
    """A process that works at something, and where it writes what it has found."""

    process: int
    pipe: int

    def answer(self) -> Any:
        """What it has found, once it has; None where it fails. Raises ProcessError where it was killed."""
        with os.fdopen(self.pipe, "rb", closefd=False) as file:
            content = file.read()
        status = os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOWAIT)
        if status is not None and status.si_code != os.CLD_EXITED:
            raise ProcessError(
                "a process that shares the work of the build was killed",
                expected="one that ends by itself",
                got=signal.Signals(status.si_status).name,
                fix="build with --jobs 1 (jobs=1), which takes less memory, and again where that was not the reason",
            )
        return pickle.loads(content) if content else None


@contextlib.contextmanager
def copy_at_work(work: Callable[[], object]) -> Iterator[Copy]:
    """A copy of this process that does some work, and is gone when the block ends, or this process does."""
    answers, write = os.pipe()
    lives, life = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads may hold locks: a copy takes none of theirs
        process = os.fork()
    if not process:
        _live(work, write, lives, life)
    try:
        os.close(write)
        os.close(lives)
        yield Copy(process, answers)
    finally:
        os.kill(process, signal.SIGKILL)  # it has not been waited for: the number is still its own
        os.waitpid(process, 0)
        os.close(answers)
        os.close(life)


def _live(work: Callable[[], object], write: int, lives: int, life: int) -> NoReturn:
    """In the copy: work, write what was found, and end without a word, whatever comes."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who interrupts a build means the first process, which ends this
        os.close(life)
        threading.Thread(target=_end_with, args=(lives,), daemon=True).start()
        with one_thread():
            content = pickle.dumps(work(), pickle.HIGHEST_PROTOCOL)
        with os.fdopen(write, "wb") as file:
            file.write(content)
    finally:
        os._exit(0)


def _end_with(lives: int) -> NoReturn:
    """End this process as soon as the first one has."""
    os.read(lives, 1)
    os._exit(1)
