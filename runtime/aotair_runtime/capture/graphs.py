"""The graphs of one entry point: captured at the addresses they serve, kept, and captured anew where those change."""

import contextlib
import copy
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..devices import Device, GraphSpace, Packed
from ..devices.threads import threads, with_threads
from ..errors import CaptureError, ClosedError, in_line
from ..format.host_inputs import inputs_as_arguments, legal_arguments
from ..format.schema import Bucket, EntryPoint, Placement, Program, Space
from ..format.sizes import describe
from ..memory.budget import check_budget, cost, raise_out_of_memory
from ..memory.promise import Promise
from ..settings import Settings
from .bind import Bound, Memory, Tensors, bind
from .captured import Captured, Key
from .phases import Phases
from .pool import Pool
from .warmup import fill_legal, warm_up


@dataclass(frozen=True)
class Parts:
    """What all entry points of a loaded model share."""

    program: Program
    device: Device
    ops: tuple[torch._ops.OpOverload, ...]
    settings: Settings
    promise: Promise
    phases: Phases = field(default_factory=Phases)
    groups: tuple[str, ...] = ()  # by axis of the mesh: the group that this rank has joined


@dataclass(frozen=True)
class Resident:
    """The tensors of a loaded model that stay where they are, and its packed constants by number and op; none once it
    is closed."""

    constants: tuple[torch.Tensor, ...] = ()
    states: tuple[torch.Tensor, ...] = ()
    packed: Mapping[tuple[int, str], Packed] = field(default_factory=dict)

    @property
    def by_number(self) -> dict[int, Packed]:
        """Each packed constant once, whatever reads it."""
        return {number: one for (number, _), one in self.packed.items()}


@dataclass
class CaptureCounters:
    """By bucket: captures, how often for which reason one was made anew, by how many bytes the pool grew, and how many
    bytes of the arena its tensors reach."""

    captures: Counter[int] = field(default_factory=Counter)
    recaptures: Counter[tuple[int, str]] = field(default_factory=Counter)  # (bucket, reason)
    grown: Counter[int] = field(default_factory=Counter)
    addressed: Counter[int] = field(default_factory=Counter)


class Graphs:
    """`pools` has the pool of each bucket; `changed` is called when graphs that were handed out are no longer good."""

    changed: Callable[[], None]

    def __init__(self, spec: EntryPoint, parts: Parts, resident: Resident, pools: Sequence[Pool]):
        self.spec, self.parts, self.resident, self.pools = spec, parts, resident, tuple(pools)
        self.counters = CaptureCounters()
        # By bucket, then by the addresses of the inputs used in place; the least recently used first.
        self._kept: dict[int, OrderedDict[Key, Captured]] = {}
        self._known: dict[int, Key] = {}  # the addresses of a bucket's last capture
        self._outgrown: set[int] = set()  # those whose graphs were dropped because the pool grew
        self._warm: set[int] = set()
        self._spoilt: set[int] = set()  # those whose graphs were dropped because an update failed
        self._listed = inputs_as_arguments(parts.program, spec)
        self._closed = self._aside = False
        for pool in dict.fromkeys(self.pools):
            pool.join(self)

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def has(self, number: int, in_place: Mapping[int, torch.Tensor]) -> bool:
        """Whether a bucket's graph for these inputs is there, and `get` captures nothing."""
        return _key(in_place) in self._kept.get(number, ())

    def get(self, number: int, in_place: Mapping[int, torch.Tensor]) -> Captured:
        """The graph of a bucket for these inputs used in place, captured where there is none.

        Raises CaptureError, BudgetError among them; the graphs that exist stay as they are.
        """
        if self._closed:
            raise ClosedError("the model was closed", fix="load it again")
        kept = self._kept.setdefault(number, OrderedDict())
        key = _key(in_place)
        if key not in kept:
            if key and not self._aside:
                self._make_room(kept, self.parts.settings.kept_graphs - 1)
            wanted = [cost(self.spec.buckets[number])]
            check_budget(self.parts.device, wanted, self.parts.settings.limits, self._where(number))
            pool = self.pools[number]
            pool.overwrite() if self.parts.device.concurrent else pool.enter()
            try:
                kept[key] = self._capture(number, in_place, pool.space)
            except RuntimeError as error:
                raise_out_of_memory(error, self.parts.device, self.parts.promise, self._where(number))
                raise
            self._count(number, key)
        return kept[key]

    def input_buffers(self, number: int) -> dict[int, torch.Tensor]:
        """Where the inputs of a bucket are copied to, by position."""
        if self._closed:
            raise ClosedError("the model was closed", fix="load it again")
        bucket = self.spec.buckets[number]
        memory = Memory(self.pools[number].space, self.resident.constants, self.resident.states, {})
        tensors = Tensors(self.parts.program, bucket, memory)
        copied = [i for i, offset in enumerate(bucket.input_offsets) if offset >= 0 and i not in self._listed]
        return {i: tensors[bucket.inputs[i]] for i in copied}

    def used(self, number: int, captured: Captured) -> None:
        """Remember that this graph was the last one used of its bucket."""
        self._kept[number].move_to_end(captured.key)

    def spoilt(self, number: int, captured: Captured) -> None:
        """Let go of a graph whose update failed: the next call that needs it captures it anew."""
        self._spoilt.add(number)
        self._forget(self._kept[number], [captured.key])

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What is captured within counts nowhere, takes no other graph's place, and is let go at the end."""
        before = {number: list(kept) for number, kept in self._kept.items()}
        known, outgrown, counters = dict(self._known), set(self._outgrown), copy.deepcopy(self.counters)
        self._aside = True
        try:
            yield
        finally:
            self._aside = False
            for number, kept in self._kept.items():
                there = before.get(number, [])
                self._forget(kept, [key for key in kept if key not in there])
                for key in there:
                    kept.move_to_end(key)  # in the order of their use, as before
            self._known, self._outgrown, self.counters = known, outgrown, counters

    def captured_in(self, space: GraphSpace) -> dict[int, Captured]:
        """Those that need nothing of the caller's, captured in another space."""
        made: dict[int, Captured] = {}
        try:
            for number, kept in self._kept.items():
                if () in kept:
                    made[number] = self._capture(number, {}, space)
        except BaseException:
            self.discard(made)
            raise
        return made

    def adopt(self, graphs: Mapping[int, Captured]) -> None:
        """Use these instead of all others; what needs the caller's tensors is captured again at its next call."""
        for number, kept in self._kept.items():
            self._forget(kept, list(kept))
            if number in graphs:
                kept[()] = graphs[number]
                self.counters.captures[number] += 1
                self.counters.recaptures[number, _GREW] += 1
                _log.info("%s captured again: %s", in_line(self._where(number)), _GREW)
        self._outgrown = set(self._known) - set(graphs)

    def discard(self, graphs: Mapping[int, Captured]) -> None:
        for captured in graphs.values():
            self._drop(captured)

    def close(self) -> None:
        self._closed = True
        self.resident = Resident()
        for kept in self._kept.values():
            self._forget(kept, list(kept))

    def memory(self, number: int, in_place: Mapping[int, torch.Tensor], space: GraphSpace | None = None) -> Memory:
        """What the instructions of a bucket address, in `space`, by default the one of its pool."""
        bucket, here = self.spec.buckets[number], self.resident
        lists = dict(zip(self._listed, legal_arguments(self.parts.program, self.spec, bucket.sizes)))
        found = space or self.pools[number].space
        joins = self.parts.device.kind == "cpu" and self.parts.settings.pack_weights
        return Memory(found, here.constants, here.states, in_place, lists, here.packed, self.parts.groups, joins)

    # ---- capturing ----------------------------------------------------------------------------------------------

    def _label(self, number: int) -> str:
        return f"{self.spec.name} {describe(self.spec, self.spec.buckets[number].sizes)}"

    def _where(self, number: int) -> str:
        return (
            f"{self.parts.program.name}.{self.spec.name}, bucket {describe(self.spec, self.spec.buckets[number].sizes)}"
        )

    def _capture(self, number: int, in_place: Mapping[int, torch.Tensor], space: GraphSpace) -> Captured:
        parts, bucket, where = self.parts, self.spec.buckets[number], self._where(number)
        memory = self.memory(number, in_place, space)
        before, count = parts.device.bytes().reserved, parts.settings.threads
        try:
            with parts.phases.phase(f"capture {self._label(number)}"), threads(count):
                bound = bind(parts.program, bucket, memory, parts.ops, parts.device.torch_device, where)
                if parts.device.concurrent and number not in self._warm:
                    with parts.phases.phase(f"warm up {self._label(number)}"):
                        self._warm_up(bucket, memory, bound, where)
                    self._warm.add(number)
                graph = space.capture(with_threads(bound.run, count), bound.updated, list(memory.lists.values()))
        except CaptureError as error:
            if error.where:
                raise
            raise CaptureError(error.what, where=where) from error
        except RuntimeError as error:  # out of memory, or the device refused
            raise CaptureError(str(error), where=where) from error
        self.counters.addressed[number] = bound.addressed
        self.counters.grown[number] += parts.device.bytes().reserved - before
        price = cost(bucket)
        parts.device.usage += price
        buffers = tuple(None if i in in_place else buffer for i, buffer in enumerate(bound.inputs))
        outputs = tuple(
            None if lies_with_caller(bucket.tensors[n], in_place) else output
            for n, output in zip(bucket.outputs, bound.outputs)
        )
        return Captured(_key(in_place), graph, buffers, outputs, price)

    def _warm_up(self, bucket: Bucket, memory: Memory, bound: Bound, where: str) -> None:
        parts = self.parts

        def run() -> None:
            fill_legal(self.spec, bound, tuple(memory.in_place))
            warm_up(parts.program, bucket, memory, parts.ops, parts.device.torch_device, where)

        memory.space.warm_up(run)
        parts.device.trim()  # of what it took outside of the pool

    def _count(self, number: int, key: Key) -> None:
        self.counters.captures[number] += 1
        seconds, where = self.parts.phases.done[-1].seconds, in_line(self._where(number))
        if number in self._known:
            reason = _GREW if number in self._outgrown else self._moved(self._known[number], key)
            reason = _FAILED if number in self._spoilt else reason
            self.counters.recaptures[number, reason] += 1
            _log.info("%s captured again in %.3f s: %s", where, seconds, in_line(reason))
        else:
            _log.info("%s captured in %.3f s", where, seconds)
        self._outgrown.discard(number)
        self._spoilt.discard(number)
        self._known[number] = key

    def _moved(self, before: Key, after: Key) -> str:
        """Which inputs have other addresses than the graph captured last."""
        old, names = dict(before), [spec.name for spec in self.spec.inputs]
        moved = [names[position] for position, address in after if old.get(position) != address]
        shown = ", ".join(moved[:3]) + (f" and {len(moved) - 3} more" if len(moved) > 3 else "")
        return f"a new address of {shown}" if moved else "inputs that have to be copied"

    def _make_room(self, kept: OrderedDict[Key, Captured], most: int) -> None:
        """Let go of those used longest ago, until `most` are left beside the one that copies all its inputs."""
        at_addresses = [key for key in kept if key]
        self._forget(kept, at_addresses[: max(0, len(at_addresses) - most)])

    def _forget(self, kept: OrderedDict[Key, Captured], keys: Sequence[Key]) -> None:
        if keys:
            self.parts.device.synchronize()
            self.changed()
        for key in keys:
            self._drop(kept.pop(key))

    def _drop(self, captured: Captured) -> None:
        captured.graph.reset()
        self.parts.device.usage -= captured.cost


_log = logging.getLogger("aotair.runtime")
_GREW, _FAILED = "the pool grew", "an update failed"


def _key(in_place: Mapping[int, torch.Tensor]) -> Key:
    return tuple([(position, tensor.data_ptr()) for position, tensor in in_place.items()])


def lies_with_caller(item: Placement, in_place: Mapping[int, object]) -> bool:
    """Whether a tensor lies in an input that is used in place."""
    return item.space in (Space.INPUT, Space.CALLER) and item.index in in_place
