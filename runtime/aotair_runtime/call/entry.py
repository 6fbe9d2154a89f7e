"""One call of a model: arguments to bucket, copy in, replay, hand out."""

import contextlib
import copy
import operator
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..capture.bind import as_dtype, can_be
from ..capture.captured import Captured
from ..capture.graphs import Graphs, Parts
from ..capture.pool import Pool
from ..errors import ArgumentError, DeviceError, DTypeError, MalformedError, ShapeError, UpdateError
from ..format.host_lists import filling
from ..format.schema import Bucket, EntryPoint, Placement, Space
from ..format.sizes import describe, evaluate, shape_text
from ..format.structure import leaf_names, packer
from ..format.torch_names import dtype
from ..memory.budget import raise_out_of_memory
from ..memory.held import Held
from ..memory.overlap import Span, Spans, destroyed, is_plain, meet, same_place, span, with_copies
from .arguments import Arguments, Misfit
from .buckets import choose, read_sizes
from .host_inputs import HostInputs

Tensors: TypeAlias = list[torch.Tensor] | tuple[torch.Tensor, ...]
_NO_LISTS: list[list[int]] = []
_NO_LENGTHS: list[int] = []
_PLANS = 1024  # shapes whose plans an entry point keeps
# What each call looks up, found once.
_Tensor, _InferenceMode = torch.Tensor, torch._C._InferenceMode
_address, _is_contiguous = _Tensor.data_ptr, _Tensor.is_contiguous


@dataclass(slots=True)
class Counters:
    """What `Model.stats()` counts for one entry point, by bucket: calls, input elements sent, input elements run."""

    calls: list[int]
    sent: list[int]
    run: list[int]


@dataclass(slots=True)
class CallPlan:
    """What a call with one set of shapes does, worked out at the first such call."""

    number: int
    pool: Pool
    captured: Captured
    copied: tuple[int, ...]  # the inputs that are copied in, by position
    all_copied: bool  # whether these are all the user inputs
    targets: list[torch.Tensor]  # where to
    fills: list[tuple[torch.Tensor, float]]  # pad regions and what they are filled with
    padded: list[int]  # for each of them, which of the copied inputs it pads; -1: one that is not copied
    placed: list[torch.Tensor | None]  # the real part of each output; None: it lies in the caller's memory
    outputs: list[torch.Tensor]  # of those that do not: all of them, unless
    in_caller: bool  # some do
    filling: list[list[int]] | None  # what is put after each list; None: no list is padded
    sent: int  # elements of the copied inputs, and of the buffers they are copied into
    run: int
    arena: Span  # the addresses that the replay may write
    held: Held  # remembers the outputs
    calls: int = 0  # since they were last counted


@dataclass(slots=True)
class LastCall:
    """A call's mutated inputs (identities and addresses), the shapes of its other inputs, and its plan: the same
    again needs no further look. Good while the tensors live, so that an identity means one object."""

    identities: list[int]
    addresses: list[int]
    shapes: list[torch.Size]
    plan: CallPlan
    watched: list[weakref.ref[torch.Tensor]]
    user_addresses: list[int] | None  # where the other inputs lie, if that matters: they may be used in place
    lengths: Sequence[int]  # of its lists
    written: Spans  # the bytes of its mutated inputs
    apart: list[int] | None  # addresses of other inputs, without gaps, known to lie where the call writes nothing


class Entry:
    """One entry point of a loaded model; call it with tensors by position, by name, or as one packed argument."""

    def __init__(self, spec: EntryPoint, parts: Parts, pools: Sequence[Pool]):
        self.spec = spec
        self._device, self._settings, self._layouts = parts.device, parts.settings, parts.program.layouts
        self._promise, self._place = parts.promise, parts.device.torch_device
        self._clones_outputs = parts.settings.enable_output_clone
        self._cloned = tuple(item.clone for item in spec.outputs) if any(o.clone for o in spec.outputs) else ()
        self._states = [span(state) for state in parts.states]
        self._held = {pool: pool.held() for pool in dict.fromkeys(pools)}
        self._lock = pools[0].lock
        self._counters = Counters(*([0] * len(spec.buckets) for _ in range(3)))
        self._names = tuple(item.name for item in spec.inputs)
        self._dtypes = tuple(dtype(item.dtype) for item in spec.inputs)
        self._mutated = tuple(i for i, item in enumerate(spec.inputs) if item.kind == "mutated")
        self._hosts = HostInputs(parts.program, spec, parts.device.torch_device)
        apart = {*self._mutated, *self._hosts.listed}
        self._users = tuple(i for i in range(len(spec.inputs)) if i not in apart)
        self._some_users, self._has_hosts = bool(apart), bool(self._hosts)
        self._take_mutated, self._take_users = _taker(self._mutated), _taker(self._users)
        self._user_dtypes = tuple(self._dtypes[i] for i in self._users)
        # By shapes: the addresses of the first call's user inputs.
        self._static: dict[tuple[torch.Size, ...], tuple[int, ...]] = {}
        self._own: set[int] = set()  # addresses of the buffers that were handed out by `inputs`
        self._pack = packer(spec.structure)
        self._structured = Arguments(self._names, dict(spec.constants))
        self._plain = self._structured.plain
        self._plans: OrderedDict[tuple[object, ...], CallPlan] = OrderedDict()
        self._last: LastCall | None = None
        self.graphs = Graphs(spec, parts, pools, self._forget_plans)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        plain = len(args) == self._plain and not kwargs and (len(args) > 1 or isinstance(args[0], torch.Tensor))
        values = args if plain else self._arguments(args, kwargs)
        return self._pack(self.flat(values))  # type: ignore[arg-type]  # `flat` refuses what is no tensor

    def flat(self, tensors: Tensors) -> list[torch.Tensor]:
        """One call with the inputs in the signature's order; gives the outputs as a flat list.

        Raises a subclass of CallError, having changed nothing, where the inputs do not fit.
        """
        mutated, lists, lengths = self._mutated, _NO_LISTS, _NO_LENGTHS
        if self._has_hosts:
            tensors, lists = self._hosts.take(tensors)
            lengths = list(map(len, lists))
        users = self._take_users(tensors) if self._some_users else tensors
        device = self._place
        for tensor, dtype_ in zip(users, self._user_dtypes):
            if not isinstance(tensor, _Tensor) or tensor.dtype is not dtype_ or tensor.device != device:
                self._refuse(tensors)
        with self._lock:
            try:
                last, apart = self._last, False
                if (
                    last is None
                    or [tensor.shape for tensor in users] != last.shapes
                    or lengths != last.lengths
                    or (mutated and not self._in_the_same_place(last, tensors))
                    or (last.user_addresses is not None and not _lie_at(last.user_addresses, users))
                ):
                    last, tensors, users = self._find_plan(tensors, users, lengths)
                elif mutated:
                    apart = [*map(_address, users)] == last.apart and False not in map(_is_contiguous, users)
                    if not apart:
                        self._refuse_shared(last.written, users)
                        last.apart = _apart(last.plan, users)
                return self._replay(last.plan, tensors, users, lists, apart)
            except RuntimeError:
                self._refuse_layouts(tensors)
                raise

    def named_outputs(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """One call with inputs by name; the outputs by their names in the structure (`structure.leaf_names`)."""
        given: list[torch.Tensor] = self._arguments((), inputs)  # type: ignore[assignment]  # `flat` refuses others
        return dict(zip(leaf_names(self.spec.structure), self.flat(given), strict=True))

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
                named = {self._names[i]: tensor for i, tensor in buffers.items()}
                found[describe(self.spec, bucket.sizes)] = named
                self._own.update(map(_address, named.values()))
            self._forget_plans()
            return found

    def counters(self) -> Counters:
        """What has been called so far."""
        with self._lock:
            for plan in self._plans.values():
                self._count(plan)
            return self._counters

    def capture(self, number: int) -> None:
        """Capture a bucket ahead of its first call; one with mutated inputs has to wait for their addresses."""
        if not self._mutated:
            with self._lock:
                self.graphs.get(number, {})

    def close(self) -> None:
        """Forget everything captured; later calls raise ClosedError."""
        with self._lock:
            self._forget_plans()
            self.graphs.close()

    @contextlib.contextmanager
    def without_replay(self, tensors: Tensors) -> Iterator[None]:
        """Calls like the one with `tensors` do everything but the replay: what is left to time is the host's work."""
        with self._lock:
            self.flat(tensors)
            assert self._last is not None
            captured = self._last.plan.captured
            graph, captured.graph = captured.graph, _NOTHING
        try:
            yield
        finally:
            captured.graph = graph

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Calls within count nowhere, and what they had captured is let go at the end."""
        with self._lock:
            counters, static = copy.deepcopy(self.counters()), dict(self._static)
            self._forget_plans()
            try:
                with self.graphs.aside():
                    yield
            finally:
                self._forget_plans()
                self._counters, self._static = counters, static

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

    def _copies(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Copies of inputs, in memory that the promise counts. Raises OutOfMemoryError."""
        try:
            return self._device.copies(tensors)
        except RuntimeError as error:
            raise_out_of_memory(error, self._device, self._promise, self.spec.name)
            raise

    def _replay_with(self, plan: CallPlan, lists: list[list[int]]) -> None:
        if plan.filling is not None:
            lists = [items + more for items, more in zip(lists, plan.filling)]
        try:
            plan.captured.graph.replay_with(lists)
        except UpdateError:
            self.graphs.spoilt(plan.number, plan.captured)
            raise

    def _arguments(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
        """The inputs in the signature's order, however they were passed."""
        try:
            return self._structured.ordered(args, kwargs)
        except Misfit as misfit:
            raise self._argument_error(str(misfit)) from None

    def _refuse(self, tensors: Sequence[object]) -> None:
        """Raises what is wrong with the inputs' types, dtypes and devices, where anything is."""
        device = self._device.torch_device
        for position, (spec, kind, tensor) in enumerate(zip(self.spec.inputs, self._dtypes, tensors, strict=True)):
            if position in self._hosts.listed:
                continue
            if not isinstance(tensor, torch.Tensor):
                raise self._argument_error(f"a {type(tensor).__name__} for {spec.name!r}", "pass torch tensors")
            if tensor.dtype != kind:
                raise DTypeError(
                    f"the input {spec.name!r} has another dtype than the model was built for", where=self.spec.name,
                    expected=f"torch.{spec.dtype}", got=str(tensor.dtype), fix=f"convert it: .to(torch.{spec.dtype})",
                )  # fmt: skip
            if tensor.device != device:
                raise DeviceError(
                    f"the input {spec.name!r} lies on another device than the model", where=self.spec.name,
                    expected=str(device), got=str(tensor.device), fix=f"move it with .to({str(device)!r})",
                )  # fmt: skip

    def _refuse_layouts(self, tensors: Sequence[object]) -> None:
        """Raises ArgumentError where an input does not lie in memory as a plain tensor does."""
        for name, tensor in zip(self._names, tensors):
            if isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided:
                raise self._argument_error(
                    f"a tensor with the layout {tensor.layout} for {name!r}", "make it .to_dense()"
                )

    def _argument_error(self, got: str, fix: str = "") -> ArgumentError:
        text = ", ".join(f"{item.name}: {item.dtype}{shape_text(self.spec, item.shape)}" for item in self.spec.inputs)
        text += "".join(f", {name} = {value!r}" for name, value in self.spec.constants if value is not None)
        return ArgumentError("the arguments do not fit", where=self.spec.name, expected=text, got=got, fix=fix)

    # ---- the first call with some shapes, or at some addresses --------------------------------------------------

    def _find_plan(self, tensors: Tensors, users: Tensors, lengths: Sequence[int]) -> tuple[LastCall, Tensors, Tensors]:
        """The plan for these inputs, remembered as that of the last call, and the inputs: copies of those that a
        capture has overwritten meanwhile."""
        if self._mutated:
            self._refuse(tensors)
        shapes = [_shape(tensor) for tensor in tensors]
        mutated = [tensors[i] for i in self._mutated]
        addresses = list(map(_address, mutated))
        static = self._settings.clone_input is False and self._is_static(shapes, users)
        plain = all(map(is_plain, mutated))
        written = Spans([span(tensor) for tensor in mutated])
        self._refuse_shared(written, users)
        addressed = {i: _address(tensors[i]) for i in self._users} if self._own else {}
        own = {i: (address, tensors[i].stride()) for i, address in addressed.items() if address in self._own}
        key = (static, *own.items(), plain, *addresses, *shapes)
        plan = self._plans.get(key)
        if plan is None:
            plan, tensors = self._plan(key, tensors, self._users if static else (), own)
        self.graphs.used(plan.number, plan.captured)
        last = LastCall(
            list(map(id, mutated)),
            addresses,
            [tensor.shape for tensor in users],
            plan,
            [self._watch(t) for t in mutated],
            None if self._settings.clone_input and not self._own else list(map(_address, users)),
            lengths,
            written,
            _apart(plan, users),
        )
        self._last = last
        return last, tensors, self._take_users(tensors) if self._some_users else tensors

    def _refuse_shared(self, written: Spans, users: Tensors) -> None:
        for position, tensor in zip(self._users, users) if self._mutated else ():
            if written.meets(span(tensor)):
                name = self._names[position]
                raise ArgumentError(
                    f"the input {name!r} shares memory with a mutated input", where=self.spec.name,
                    expected="inputs apart from what the call writes: what it reads would depend on when it does",
                    fix=f"pass {name}.clone()",
                )  # fmt: skip

    def _watch(self, tensor: torch.Tensor) -> weakref.ref[torch.Tensor]:
        """Forget the last call when the tensor dies: its identity may then come again."""
        entry = weakref.ref(self)

        def gone(_: object) -> None:
            if (alive := entry()) is not None:
                alive._last = None

        return weakref.ref(tensor, gone)

    def _is_static(self, shapes: Sequence[torch.Size], users: Tensors) -> bool:
        """Whether the user inputs lie where those of the first call with these shapes lay (or this is the first)."""
        if not all(map(is_plain, users)):
            return False
        addresses = tuple(map(_address, users))
        return self._static.setdefault(tuple(shapes), addresses) == addresses

    def _plan(
        self, key: tuple[object, ...], tensors: Tensors, static: Sequence[int], own: Collection[int]
    ) -> tuple[CallPlan, Tensors]:
        """`own` are the inputs at addresses of buffers that were handed out: only of these, which `key` holds, may one
        not be copied. Another that lies in its buffer by chance, an output of an earlier call say, is copied as its
        shape's next one will have to be. Gives the inputs too: copies of those that a capture has overwritten."""
        shapes = [_shape(tensor) for tensor in tensors]
        sizes = read_sizes(self.spec, shapes)
        number = choose(self.spec, sizes)
        bucket, pool = self.spec.buckets[number], self.graphs.pools[number]
        self._check_mutated(tensors, number)
        usable = self._usable_in_place(number, sizes, tensors, static)
        in_place = {i: tensors[i] for i in (*self._mutated, *usable)}
        kept = tensors if self.graphs.has(number, in_place) else self._saved(pool, tensors)
        captured = self.graphs.get(number, in_place)
        listed = self._hosts.listed
        buffers = {i: buffer for i, buffer in enumerate(captured.buffers) if buffer is not None and i not in listed}
        parts = {i: _part(buffer, tensors[i].shape) for i, buffer in buffers.items()}
        copied = tuple(i for i, part in parts.items() if i not in own or not same_place(part, tensors[i]))
        placed = [
            None if output is None else _part(output, [evaluate(expr, sizes) for expr in spec.shape])
            for output, spec in zip(captured.outputs, self.spec.outputs)
        ]
        fills = [(i, *fill) for i in buffers for fill in self._fills(i, buffers[i], tensors[i].shape)]
        plan = CallPlan(
            number,
            pool,
            captured,
            copied,
            copied == self._users,
            [parts[i] for i in copied],
            [(region, value) for _, region, value in fills],
            [copied.index(i) if i in copied else -1 for i, *_ in fills],
            placed,
            [output for output in placed if output is not None],
            None in captured.outputs,
            self._filling(bucket, shapes) if tuple(sizes) != bucket.sizes else None,
            sum(tensors[i].numel() for i in buffers),
            sum(buffer.numel() for buffer in buffers.values()),
            pool.span,
            self._held[pool],
        )
        for i in (i for i in own if i in parts and i not in copied and kept[i] is not tensors[i]):
            with torch.inference_mode():
                parts[i].copy_(kept[i])
        self._plans[key] = plan
        if len(self._plans) > _PLANS:
            self._count(self._plans.popitem(last=False)[1])
        return plan, kept

    def _saved(self, pool: Pool, tensors: Tensors) -> Tensors:
        """The inputs before a capture that may run the bucket: copies of those that lie in the pool."""
        numbers = [i for i in self._users if meet(span(tensors[i]), pool.span)]
        if not numbers:
            return tensors
        pool.enter()
        with torch.inference_mode():
            return with_copies(tensors, numbers, self._copies)

    def _filling(self, bucket: Bucket, shapes: Sequence[torch.Size]) -> list[list[int]]:
        wanted = [self._layouts[bucket.tensors[bucket.inputs[i]].layout].shape[0] for i in self._hosts.listed]
        return [filling(self.spec.inputs[i], want - shapes[i][0]) for i, want in zip(self._hosts.listed, wanted)]

    def _usable_in_place(
        self, number: int, sizes: Sequence[int], tensors: Tensors, static: Sequence[int]
    ) -> Sequence[int]:
        """Of the user inputs that may be used where they lie, those that the program addresses as such (none where the
        call is padded, or the artifact is of a format in which inputs are always copied), that the replay does not
        write, and that lie so that every dtype in which the program looks at them can."""
        bucket = self.spec.buckets[number]
        if tuple(sizes) != bucket.sizes:
            return ()
        written = (self.graphs.pools[number].span, *self._states)
        return [
            i
            for i in static
            if bucket.tensors[bucket.inputs[i]].space == Space.INPUT
            and not any(meet(span(tensors[i]), other) for other in written)
            and all(can_be(tensors[i], kind) for kind in self._kinds(bucket, i))
        ]

    def _kinds(self, bucket: Bucket, position: int) -> set[torch.dtype]:
        """The dtypes in which a bucket's program looks at an input."""
        mine = [at for at in bucket.tensors if at.space in (Space.INPUT, Space.CALLER) and at.index == position]
        return {dtype(self._layouts[at.layout].dtype) for at in mine}

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

    def _count(self, plan: CallPlan) -> None:
        """Add a plan's calls to the counters of its bucket."""
        calls, plan.calls = plan.calls, 0
        self._counters.calls[plan.number] += calls
        self._counters.sent[plan.number] += calls * plan.sent
        self._counters.run[plan.number] += calls * plan.run

    def _forget_plans(self) -> None:
        self.counters()
        self._plans.clear()
        self._last = None

    def _fills(self, position: int, buffer: torch.Tensor, shape: Sequence[int]) -> list[tuple[torch.Tensor, float]]:
        """The pad regions of an input's buffer, one for each padded axis, and what to fill them with."""
        spec = self.spec.inputs[position]
        value = spec.pad
        if value == "any":
            if buffer.dtype.is_floating_point:
                return []  # the build proved that NaN and infinities do no harm, so what lies there does none
            # Any legal value will do, but what lies there may not be one: an index out of range, say.
            value = int(spec.value_range[0]) if spec.value_range else 0
        axes = [axis for axis, size in enumerate(shape) if size < buffer.shape[axis]]
        if value is None:
            if axes:
                where = f"{self.spec.name}, the input {spec.name!r}"
                raise MalformedError("it is padded, and the artifact does not say with what", where=where)
            return []
        return [(buffer.narrow(axis, shape[axis], buffer.shape[axis] - shape[axis]), value) for axis in axes]

    def _check_mutated(self, tensors: Tensors, number: int) -> None:
        """Raises ShapeError where a mutated input does not lie as the program will address it, and ArgumentError where
        it shares memory with another, or with what the model itself writes."""
        bucket, seen = self.spec.buckets[number], [self.graphs.pools[number].span, *self._states]
        where = f"{self.spec.name}, bucket {describe(self.spec, bucket.sizes)}"
        for i in self._mutated:
            want, tensor, name = self._layouts[bucket.tensors[bucket.inputs[i]].layout], tensors[i], self._names[i]
            lies = is_plain(tensor) and all(can_be(tensor, kind) for kind in self._kinds(bucket, i))
            if tensor.shape != want.shape or not lies:
                raise ShapeError(
                    f"the mutated input {name!r} is used in place and must lie as the program expects", where=where,
                    expected=f"shape {list(want.shape)}, strides {list(want.strides)}, aligned, no conjugate view",
                    got=f"shape {list(tensor.shape)}, strides {list(tensor.stride())}, "
                    f"storage offset {tensor.storage_offset()}",
                )  # fmt: skip
            if any(meet(span(tensor), other) for other in seen):
                raise ArgumentError(
                    f"the mutated input {name!r} shares memory with the model's own, or with another mutated input",
                    where=where, expected="memory of the caller's that nothing else in this call writes",
                    fix=f"pass a copy: {name}.clone(); outputs and states lie in the model's memory",
                )  # fmt: skip
            seen.append(span(tensor))


def _apart(plan: CallPlan, users: Tensors) -> list[int] | None:
    """Where inputs lie that share memory with no mutated one, if they also lie outside of what the replay writes, and
    each without gaps, so that the addresses say it all."""
    addresses = list(map(_address, users))
    low, high = plan.arena
    if any(low <= address < high for address in addresses) or not all(map(_is_contiguous, users)):
        return None
    return addresses


def _lie_at(addresses: list[int], tensors: Tensors) -> bool:
    return list(map(_address, tensors)) == addresses and all(map(is_plain, tensors))


def _taker(positions: Sequence[int]) -> Callable[[Tensors], Tensors]:
    """A function that takes the items at `positions` out of a sequence, as fast as Python can."""
    if not positions or tuple(positions) == tuple(range(positions[0], positions[-1] + 1)):
        return operator.itemgetter(slice(positions[0], positions[-1] + 1) if positions else slice(0))
    return operator.itemgetter(*positions)


def _part(buffer: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The leading part of `buffer` with that shape."""
    for axis, size in enumerate(shape):
        if size != buffer.shape[axis]:
            buffer = buffer.narrow(axis, 0, size)
    return buffer


def _shape(value: torch.Tensor | list[int]) -> torch.Size:
    return value.shape if isinstance(value, torch.Tensor) else torch.Size((len(value),))


class _Nothing:
    def replay(self, *_: object) -> None:
        pass

    replay_with = replay

    def reset(self) -> None:
        pass


_NOTHING = _Nothing()
