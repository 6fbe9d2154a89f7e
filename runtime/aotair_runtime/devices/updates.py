"""A captured graph whose host arguments are replaced at each replay, while it runs.

Each launch with such arguments lies in a task group behind a gate, an external event. A replay is issued first; then,
on a stream of their own, the groups get their new arguments one after the other, and each gate is opened as soon as its
group has them: the device works while the host is still busy with later groups.
"""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch

from ..errors import UpdateError
from .base import Event, Gate, Recording, Stream
from .host_call import HostCall

Lists = Sequence[list[int]]


class Updates(Protocol):
    """A vendor's calls for task groups; `lock` keeps the updates of threads apart, whose streams may be the same."""

    lock: AbstractContextManager[object]

    def gate(self) -> Gate:
        """An event that a capture waits for and that is recorded outside of it."""

    def group_begin(self, stream: Stream, /) -> None: ...

    def group_end(self, stream: Stream, /) -> object:
        """The handle of the group."""

    def update_begin(self, stream: Stream, group: object, /) -> None: ...

    def update_end(self, stream: Stream, /) -> None: ...


@dataclass(frozen=True)
class Node:
    """A captured launch: its call, its task group and its gate."""

    call: HostCall
    group: object
    gate: Gate


@dataclass(frozen=True)
class Gates:
    """The gates of all graphs with so many nodes in one space, whose replays never overlap. `opening` opens them all in
    one launch; `closing` leaves them closed, whatever went before."""

    events: tuple[Gate, ...]
    opening: Recording
    closing: Recording


class Lane:
    """The streams of a replay and its updates, in one space."""

    def __init__(self, api: ModuleType, number: Callable[[], int], device: torch.device, spare: Stream):
        self._api, self._number, self._device = api, number, device
        self.spare = spare  # for when updates have failed
        self.use: Callable[[Stream], None] = api.set_stream
        self._known: dict[int, Stream] = {}  # by their handles: asking torch for the current one takes long
        self._beside: list[Stream] = []
        self._mark: Event = api.Event()

    def current(self) -> Stream:
        """The caller's stream."""
        number = self._number()
        if number not in self._known:
            self._known[number] = self._api.current_stream(self._device)
        return self._known[number]

    def beside(self, current: Stream) -> Stream:
        """A stream for updates: never the caller's."""
        while not self._beside or self._beside[0] == current:
            self._beside.insert(0, self._api.Stream(self._device, priority=-1))
            del self._beside[2:]
        return self._beside[0]

    def renew(self) -> None:
        """Take other streams for updates."""
        self._beside.clear()

    def follow(self, stream: Stream, current: Stream) -> None:
        """Let a stream wait for what was issued on the caller's."""
        self._mark.record(current)
        stream.wait_event(self._mark)

    def follow_mark(self) -> None:
        """Let the spare stream wait for what the last `follow` did."""
        self.spare.wait_event(self._mark)


class UpdatedGraph:
    """`lists` are those that were captured, by the number of each list input."""

    def __init__(
        self, graph: Recording, nodes: Sequence[Node], gates: Gates, lists: Lists, updates: Updates, lane: Lane
    ):
        self._graph, self._nodes, self._gates, self._updates, self._lane = graph, tuple(nodes), gates, updates, lane
        self._lists: list[list[int]] | None = list(lists)

    def replay(self) -> None:
        raise UpdateError("a graph with host arguments was replayed without them")

    def replay_with(self, lists: Lists) -> None:
        """Replay with these lists. Raises UpdateError, and is not to be used again, where a group did not get them:
        what the replay left behind is worth nothing then."""
        if self._lists is None:
            raise UpdateError("an earlier update of this graph failed")
        if lists == self._lists:
            self._gates.opening.replay()
            self._graph.replay()
            return
        changed = [new != old for new, old in zip(lists, self._lists, strict=True)]
        with self._updates.lock:
            current = self._lane.current()
            beside = self._lane.beside(current)
            self._gates.closing.replay()
            self._lane.follow(beside, current)  # an earlier replay may not have come to its groups yet
            self._lists = None
            try:
                self._replay()
                self._update(beside, lists, changed)
            finally:
                self._lane.use(current)
        self._lists = list(lists)

    def _replay(self) -> None:
        try:
            self._graph.replay()
        except BaseException as error:
            self._let_go(0)  # some of it may have been issued
            raise UpdateError(f"the replay was not issued: {error}") from error

    def _update(self, stream: Stream, lists: Lists, changed: Sequence[bool]) -> None:
        begin, end, lane = self._updates.update_begin, self._updates.update_end, self._lane
        done = 0
        try:
            lane.use(stream)
            for node in self._nodes:
                call = node.call
                if call.takes(changed):
                    call.set(lists)
                    begin(stream, node.group)
                    try:
                        call()
                    finally:
                        end(stream)
                node.gate.record(stream)
                done += 1
        except BaseException as error:
            self._let_go(done)
            self._give_up(stream)
            if not isinstance(error, Exception):
                raise
            what = f"the host arguments of {self._nodes[done].call.node} were not replaced: {error}"
            raise UpdateError(
                what,
                got="a replay with those of an earlier call",
                expected="those of this call",
                fix="call again: the bucket is captured anew; what the call wrote into states and inputs is not right",
            ) from error

    def _let_go(self, done: int) -> None:
        """Open the gates that are still closed: the device would wait for ever."""
        self._lane.follow_mark()
        for node in self._nodes[done:]:
            node.gate.record(self._lane.spare)

    def _give_up(self, stream: Stream) -> None:
        """Leave a stream whose update may still be open, and take another one from now on."""
        with contextlib.suppress(RuntimeError):
            self._updates.update_end(stream)
        self._lane.renew()

    def reset(self) -> None:
        self._lists = None
        self._graph.reset()
        self._nodes = ()
