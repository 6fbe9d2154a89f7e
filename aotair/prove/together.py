"""An artifact of several ranks, all of them threads of this process, called as if it were one model."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from aotair_runtime.artifact.open import Artifact
from aotair_runtime.devices import open_device
from aotair_runtime.devices.groups import PartedError, forget, register
from aotair_runtime.errors import AotairError, causes
from aotair_runtime.format.mesh import (
    coordinates,
    joined,
    neighbours,
    part_number,
    part_of,
    parts_of,
    ranks_of,
)
from aotair_runtime.format.schema import Program
from aotair_runtime.model import Model
from aotair_runtime.ranks.calls import REFUSED
from aotair_runtime.settings import Settings
from aotair_runtime.weights.golden import Comparison, replay_golden

from ..errors import InternalError, ProofError
from .meeting import Meeting, ThreadRanks
from .replicas import Others, Replicas

_Result = TypeVar("_Result")
_END = 1.0  # seconds that a thread may take to end, once it has done its work


class _Party:
    """A rank that is a thread: whoever drives all of them calls them alike, but for the sizes of inputs that they have
    for themselves."""

    def __init__(self, rank: int, groups: Sequence[str], abandon: Callable[[], None], everyone: Meeting | None):
        self.rank, self.groups, self._abandon, self.drives = rank, tuple(groups), abandon, rank == 0
        self.at_end: Callable[[], None] = lambda: None
        self._everyone = everyone

    def agree(self, what: int, sizes: Sequence[int], fixed: Collection[int] = ()) -> Sequence[int]:
        """The largest sizes; who drives them sees to it that all else is alike."""
        if self._everyone is None or what == REFUSED:
            return sizes
        found: list[tuple[int, ...]] = []

        def compare(said: list[torch.Tensor]) -> None:
            found.append(tuple(torch.stack(said).amax(0).tolist()))

        self._everyone.together(self.rank, f"call {what}", torch.tensor(sizes, dtype=torch.int64), compare)
        return found[0]

    def all_or_none(self, what: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def refuse_unlike(self, what: str, mark: Callable[[], str], place: str) -> None:
        """Threads of one process read the same files."""

    def failure(self, error: Exception, own: bool = False) -> Exception:
        self._abandon()
        return error

    def broadcast(self, message: bytearray) -> None:
        raise InternalError("threads are called together, and drive nobody")

    def close(self) -> None:
        forget(self.groups)


@dataclass(frozen=True)
class _Entry:
    """An entry point of all ranks."""

    name: str
    ranks: "AllRanks"

    def flat(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """One call on every rank with copies of these inputs; what all of them answer. Mutated inputs are those of the
        first. Raises ProofError where the ranks answer differently."""
        return self.ranks.called(self.name, tensors)


class AllRanks:
    """`artifacts`: one for each rank, in order, with its parts of the weights; `others`: what those replicas are called
    with whose turn it is not (`Replicas`)."""

    def __init__(self, artifacts: Sequence[Artifact], settings: Settings, others: Others | None = None):
        self.program: Program = artifacts[0].program
        mesh, self._meetings = self.program.mesh, list[Meeting]()
        everyone = Meeting(len(artifacts)) if self.program.own_inputs else None
        self._meetings += [everyone] if everyone else []
        self._replicas = Replicas(self.program, others)
        self._specs = {entry.name: entry for entry in self.program.entry_points}
        names: list[list[str]] = [[] for _ in artifacts]
        for number, axis in enumerate(mesh):
            for members in neighbours(mesh, number):
                meeting = Meeting(len(members))
                self._meetings.append(meeting)
                for place, rank in enumerate(members):
                    names[rank].append(register(ThreadRanks(meeting, place), axis.name))
        self.models: list[Model] = []
        try:
            for rank, artifact in enumerate(artifacts):
                party = _Party(rank, names[rank], self._abandon, everyone)
                self.models.append(Model(artifact, open_device("cpu"), settings, party=party))
        except BaseException:
            self.close()
            raise
        self.entry_points = {entry.name: _Entry(entry.name, self) for entry in self.program.entry_points}

    def __enter__(self) -> "AllRanks":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for model in self.models:
            model.close()

    def _abandon(self) -> None:
        for meeting in self._meetings:
            meeting.abandon()

    # ---- states --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the states, whole."""
        return {item.name: self._whole(number) for number, item in enumerate(self.program.state)}

    def _whole(self, number: int) -> torch.Tensor:
        item = self.program.state[number]
        shard = self.program.constants[item.constant].shard
        first, *_ = mine = self._replicas.called
        if shard is None:
            return self.models[first].state[item.name].clone()
        parts = {part_number(shard, self.program.mesh, rank): rank for rank in reversed(mine)}
        return joined([self.models[parts[n]].state[item.name] for n in range(parts_of(shard))], shard)

    def put_states(self, states: Mapping[str, torch.Tensor]) -> None:
        """Give states these values, each rank its part; the next call is the next replica's."""
        self._replicas.next()
        for item in self.program.state:
            if item.name not in states:
                continue
            shard = self.program.constants[item.constant].shard
            for rank, model in enumerate(self.models):
                number = 0 if shard is None else part_number(shard, self.program.mesh, rank)
                value = states[item.name] if shard is None else part_of(states[item.name], shard, number)
                model.state[item.name].copy_(value)

    def reset_state(self) -> None:
        for model in self.models:
            model.reset_state()

    # ---- calls ----------------------------------------------------------------------------------------------------

    def called(self, name: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = self._replicas.inputs(self._specs[name], tensors)

        def call(rank: int) -> list[torch.Tensor]:
            return self.models[rank].entry_points[name].flat(given[rank])

        answers = self._on_all(call)
        for rank, answer in enumerate(answers):
            first = self._replicas.first_like(rank)
            for number, (own, others) in enumerate(zip(answer, answers[first], strict=True)):
                if not _alike(own, others):
                    raise ProofError(
                        f"the ranks answer differently: output {number} of {name} on rank {rank}",
                        where=self.program.name,
                        expected=f"the same numbers on every rank, those of rank {first}",
                        got=f"rank {rank} at {dict(zip(self._axes(), coordinates(self.program.mesh, rank)))}",
                        fix="gather what each rank has a part of (parallel: {NAME: gathered}), or sum it (rowwise)",
                    )
        return answers[self._replicas.called[0]]

    def replay_golden(self) -> Iterator[Comparison]:
        """Every bucket on its golden inputs, compared on each rank."""
        for found in self._on_all(lambda rank: list(replay_golden(self.models[rank]))):
            yield from found

    def _axes(self) -> list[str]:
        return [axis.name for axis in self.program.mesh]

    def _on_all(self, run: Callable[[int], _Result]) -> list[_Result]:
        """What each rank comes to, at the same time. Raises what one of them raises."""
        results: list[_Result | None] = [None] * len(self.models)
        errors: list[BaseException] = []
        own = torch.get_num_threads()

        def work(rank: int) -> None:
            try:
                results[rank] = run(rank)
            except BaseException as error:
                errors.append(error)
                self._abandon()

        threads = [
            threading.Thread(target=work, args=(rank,), name=f"rank {rank}")
            for rank in range(ranks_of(self.program.mesh))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _wait_for_end(threads)
        torch.set_num_threads(own)
        if errors:
            raise next((error for error in errors if not _of_others(error)), errors[0])
        return [result for result in results if result is not None]


def _wait_for_end(threads: Sequence[threading.Thread]) -> None:
    """Until the system has none of these threads, which have done their work. As they end they take locks of libraries
    (MKL's, of its memory); a copy of this process that is made meanwhile would wait for these for ever."""
    end = time.monotonic() + _END
    for thread in threads:
        while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < end:
            time.sleep(1e-4)


def _of_others(error: BaseException) -> bool:
    return any(
        isinstance(one, PartedError) or (isinstance(one, AotairError) and "another rank failed" in one.what)
        for one in causes(error)
    )


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, where all NaN are one."""
    return torch.equal(one.nan_to_num(), other.nan_to_num()) and torch.equal(one.isnan(), other.isnan())
