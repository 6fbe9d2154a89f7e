"""One call of a model: arguments to bucket, copy in, replay, hand out."""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.bind import as_dtype
from ..capture.captured import Captured
from ..capture.graphs import Graphs, Parts, Resident
from ..capture.pool import Pool
from ..devices import Device
from ..errors import ArgumentError, UpdateError
from ..format.schema import EntryPoint, Placement
from ..format.sizes import describe
from ..format.structure import leaf_names, packer
from ..format.torch_names import dtype
from ..memory.budget import raise_out_of_memory
from ..memory.overlap import destroyed, is_plain, with_copies
from ..memory.promise import Promise
from .buckets import choose, read_sizes
from .call_plan import CallPlan, Planner, shape_of
from .plan_cache import LastCall, PlanCache, apart
from .signature import Signature, Tensors

_NO_LISTS: list[list[int]] = []
_NO_LENGTHS: list[int] = []
# What each call looks up, found once.
_Tensor, _InferenceMode = torch.Tensor, torch._C._InferenceMode
_address, _is_contiguous = _Tensor.data_ptr, _Tensor.is_contiguous


@dataclass(slots=True)
class Counters:
    """What `Model.stats()` counts for one entry point, by bucket: calls, input elements sent, input elements run."""

    calls: list[int]
    sent: list[int]
    run: list[int]

    def add(self, plan: CallPlan) -> None:
        """Count a plan's calls since it was last counted."""
        calls, plan.calls = plan.calls, 0
        self.calls[plan.number] += calls
        self.sent[plan.number] += calls * plan.sent
        self.run[plan.number] += calls * plan.run

    def become(self, other: "Counters") -> None:
        self.calls, self.sent, self.run = other.calls, other.sent, other.run


class Entry:
    """One entry point of a loaded model; call it with tensors by position, by name, or as one packed argument.

    `life` is held as long as the entry point is: the model's memory is given back when nobody holds it any more. An
    entry point therefore has to be in no cycle of references, which would keep it until they are looked for.
    """

    def __init__(self, spec: EntryPoint, parts: Parts, resident: Resident, pools: Sequence[Pool], life: object):
        self.spec, self._life = spec, life
        self._layouts = parts.program.layouts
        self._clones_outputs = parts.settings.enable_output_clone
        self._cloned = tuple(item.clone for item in spec.outputs) if any(o.clone for o in spec.outputs) else ()
        self._lock = pools[0].lock
        self._counters = Counters(*([0] * len(spec.buckets) for _ in range(3)))
        self._pack, self._is_watched = packer(spec.structure), False
        self._signature = signature = Signature(parts.program, spec, parts.device.torch_device)
        self._place, self._user_dtypes = signature.place, signature.user_dtypes
        self._mutated, self._has_hosts = signature.mutated, bool(signature.hosts)
        self._some_users, self._plain = not signature.all_users, signature.plain
        self._take_mutated, self._take_users = signature.take_mutated, signature.take_users
        self._copies = functools.partial(_copies, parts.device, parts.promise, spec.name)
        self.graphs = Graphs(spec, parts, resident, pools)
        held = {pool: pool.held() for pool in dict.fromkeys(pools)}
        self._planner = Planner(signature, self._layouts, resident.states, self.graphs, held, self._copies)
        self._plans = PlanCache(signature, self._planner, parts.settings.clone_input, self._counters.add)
        self.graphs.changed = self._plans.forget

    def __call__(self, *args: object, **kwargs: object) -> Any:
        plain = len(args) == self._plain and not kwargs and (len(args) > 1 or isinstance(args[0], torch.Tensor))
        values: tuple[Any, ...] | list[Any] = args if plain else self._given(args, kwargs)
        return self._pack(self.flat(values))

    def _given(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[Any] | tuple[Any, ...]:
        """The arguments of a call that is about to be made, in the signature's order; `flat` looks at what they are.
        Raises ArgumentError."""
        return self._signature.ordered(args, kwargs)

    def ordered(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
        """The arguments of a call in the signature's order. Raises ArgumentError."""
        return list(self._signature.ordered(args, kwargs))

    def packed(self, outputs: list[torch.Tensor]) -> Any:
        """The outputs in the structure that a call returns."""
        return self._pack(outputs)

    def checked(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
        """The inputs of a call in the signature's order. Raises a subclass of CallError where the call would."""
        given = self._signature.ordered(args, kwargs)
        values = self._signature.hosts.take(given)[0] if self._has_hosts else given
        self._signature.refuse(values)
        self._signature.refuse_layouts(values)
        choose(self.spec, read_sizes(self.spec, [shape_of(value) for value in values]))  # type: ignore[arg-type]  # refused above
        return list(values)

    def flat(self, tensors: Tensors) -> list[torch.Tensor]:
        """One call with the inputs in the signature's order; gives the outputs as a flat list.

        Raises a subclass of CallError, having changed nothing, where the inputs do not fit.
        """
        mutated, lists, lengths = self._mutated, _NO_LISTS, _NO_LENGTHS
        if self._has_hosts:
            tensors, lists = self._signature.hosts.take(tensors)
            lengths = list(map(len, lists))
        users = self._take_users(tensors) if self._some_users else tensors
        device = self._place
        for tensor, dtype_ in zip(users, self._user_dtypes):
            if not isinstance(tensor, _Tensor) or tensor.dtype is not dtype_ or tensor.device != device:
                self._signature.refuse(tensors)
        with self._lock:
            try:
                last, are_apart = self._plans.last, False
                if (
                    last is None
                    or [tensor.shape for tensor in users] != last.shapes
                    or lengths != last.lengths
                    or (mutated and not self._in_the_same_place(last, tensors))
                    or (last.user_addresses is not None and not _lie_at(last.user_addresses, users))
                ):
                    last, tensors = self._plans.find(tensors, users, lengths)
                    users = self._take_users(tensors) if self._some_users else tensors
                    self.graphs.used(last.plan.number, last.plan.captured)
                elif mutated:
                    are_apart = [*map(_address, users)] == last.apart and False not in map(_is_contiguous, users)
                    if not are_apart:
                        self._signature.refuse_shared(last.written, users)
                        last.apart = apart(last.plan, users)
                return self._replay(last.plan, tensors, users, lists, are_apart)
            except RuntimeError:
                self._signature.refuse_layouts(tensors)
                raise

    def named_outputs(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """One call with inputs by name; the outputs by their names in the structure (`structure.leaf_names`)."""
        return dict(zip(leaf_names(self.spec.structure), self.flat(self._given((), inputs)), strict=True))

    @property
    def inputs(self) -> dict[str, dict[str, torch.Tensor]]:
        """By bucket, as `Model.buckets` names them, and by name: the buffers that inputs are copied to.

        What a call gets in its place, the same memory with the same strides, is not copied. A call overwrites them:
        write all of them before each one.
        """
        with self._lock:
            found = {}
            for number, bucket in enumerate(self.spec.buckets):
                buffers = self.graphs.input_buffers(number)
                named = {self._signature.names[i]: tensor for i, tensor in buffers.items()}
                found[describe(self.spec, bucket.sizes)] = named
                self._plans.own.update(map(_address, named.values()))
            self._plans.forget()
            return found

    def counters(self) -> Counters:
        """What has been called so far."""
        with self._lock:
            for plan in self._plans:
                self._counters.add(plan)
            return self._counters

    def capture(self, number: int) -> None:
        """Capture a bucket ahead of its first call; one with mutated inputs has to wait for their addresses."""
        if not self._mutated:
            with self._lock:
                self.graphs.get(number, {})

    def close(self) -> None:
        """Forget everything captured; later calls raise ClosedError."""
        with self._lock:
            self._plans.forget()
            self.graphs.close()

    def captured(self, tensors: Tensors) -> Captured:
        """The graph that serves a call with these inputs, which it makes."""
        with self._lock:
            self.flat(tensors)
            assert self._plans.last is not None
            return self._plans.last.plan.captured

    def watched(self, flat: Callable[[Tensors], list[torch.Tensor]], replay: Callable[..., list[torch.Tensor]]) -> None:
        """Until `unwatched`, calls go through these instead of `flat`, and of what copies in, replays and hands out.
        Raises ArgumentError where they do so already."""
        with self._lock:
            if self._is_watched:
                raise ArgumentError("another profile of this model is under way", fix="end it first")
            # As attributes: whoever looks at `__dict__` makes all later calls slower.
            self._is_watched = True
            self.flat, self._replay = flat, replay  # type: ignore[method-assign, assignment]

    def unwatched(self) -> None:
        """Calls go their own way again."""
        with self._lock:
            if self._is_watched:
                del self.flat, self._replay
            self._is_watched = False

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Calls within count nowhere, and what they had captured is let go at the end."""
        with self._lock:
            counters, static = copy.deepcopy(self.counters()), dict(self._plans.static)
            self._plans.forget()
            try:
                with self.graphs.aside():
                    yield
            finally:
                self._plans.forget()
                self._counters.become(counters)
                self._plans.static = static

    # ---- one call, in order ---------------------------------------------------------------------------------

    def _in_the_same_place(self, last: LastCall, tensors: Tensors) -> bool:
        mutated = self._take_mutated(tensors)
        return (
            [*map(id, mutated)] == last.identities
            and [*map(_address, mutated)] == last.addresses
            and False not in map(_is_contiguous, mutated)
        )

    def _replay(
        self,
        plan: CallPlan,
        tensors: Tensors,
        users: Tensors,
        lists: list[list[int]],
        apart: bool,
    ) -> list[torch.Tensor]:
        """Copy in, replay, hand out; `apart` says that no input lies where the replay writes."""
        pool = plan.pool
        pool.enter()  # these two are `pool.overwrite`, without its call
        pool.replays += 1
        guard = _InferenceMode(True)
        try:
            if plan.targets:
                sources = users if plan.all_copied else [tensors[i] for i in plan.copied]
                if not apart:
                    low, high = plan.arena
                    for source in sources:
                        if low <= _address(source) < high:
                            sources = self._set_aside(plan, sources)
                            break
            for region, value in plan.fills:
                region.fill_(value)
            if plan.targets:
                torch._foreach_copy_(plan.targets, sources)
            if lists:
                self._replay_with(plan, lists)
            else:
                plan.captured.graph.replay()
        finally:
            del guard
        plan.calls += 1
        outputs = self._with_callers(plan, tensors) if plan.in_caller else plan.outputs
        if self._clones_outputs:
            return [output.clone() for output in outputs]
        if plan.in_caller or self._cloned:
            return self._hand_out_some(plan, outputs)
        outputs = [output.detach() for output in outputs]
        plan.held.hand_out(outputs, pool.replays)
        return outputs

    def _hand_out_some(self, plan: CallPlan, outputs: Tensors) -> list[torch.Tensor]:
        """The outputs, where some are copies, or lie in the caller's memory: those nobody overwrites."""
        cloned = self._cloned or [False] * len(outputs)
        given = [o.clone() if clone else o.detach() for o, clone in zip(outputs, cloned)]
        ours = zip(given, cloned, plan.placed)
        plan.held.hand_out([o for o, clone, made in ours if made is not None and not clone], plan.pool.replays)
        return given

    def _set_aside(self, plan: CallPlan, sources: Tensors) -> Tensors:
        """`sources`, some of which lie in the pool: copies of those that filling and copying in would write over."""
        plan.pool.warn_of_stale(sources)
        fills = [(owner, region) for owner, (region, _) in zip(plan.padded, plan.fills)]
        numbers = destroyed(sources, plan.targets, fills)
        return with_copies(sources, numbers, self._copies) if numbers else sources

    def _replay_with(self, plan: CallPlan, lists: list[list[int]]) -> None:
        if plan.filling is not None:
            lists = [items + more for items, more in zip(lists, plan.filling)]
        try:
            plan.captured.graph.replay_with(lists)
        except UpdateError:
            self.graphs.spoilt(plan.number, plan.captured)
            raise

    def _with_callers(self, plan: CallPlan, tensors: Tensors) -> list[torch.Tensor]:
        """The outputs, those in the caller's memory as views of this call's inputs."""
        bucket = self.spec.buckets[plan.number]
        places = [bucket.tensors[number] for number in bucket.outputs]
        return [
            self._view(tensors[place.index], place) if output is None else output
            for output, place in zip(plan.placed, places)
        ]

    def _view(self, tensor: torch.Tensor, place: Placement) -> torch.Tensor:
        found = self._layouts[place.layout]
        base = as_dtype(tensor, dtype(found.dtype))
        start = base.storage_offset() + place.offset // base.element_size()
        return base.as_strided(found.shape, found.strides, start)


def _lie_at(addresses: list[int], tensors: Tensors) -> bool:
    return list(map(_address, tensors)) == addresses and all(map(is_plain, tensors))


def _copies(device: Device, promise: Promise, name: str, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Copies of inputs, in memory that the promise counts. Raises OutOfMemoryError."""
    try:
        return device.copies(tensors)
    except RuntimeError as error:
        raise_out_of_memory(error, device, promise, name)
        raise
