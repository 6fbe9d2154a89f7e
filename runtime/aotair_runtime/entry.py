"""One call of a model: arguments to bucket, copy in, replay, hand out."""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from .buckets import choose, describe, evaluate, read_sizes, shape_text
from .check import dtype
from .devices import Graph
from .errors import ArgumentError, ClosedError, DeviceError, DTypeError, ShapeError
from .executor import Bound
from .pool import Pool
from .schema import EntryPoint, Program
from .structure import leaf_names, packer

_PLANS = 1024  # shapes whose plans an entry point keeps


@dataclass(slots=True)
class Captured:
    """A bucket ready to replay: what was captured, and the tensors it was bound to."""

    bound: Bound
    graph: Graph


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
    captured: Captured
    copied: tuple[int, ...]  # the inputs that are copied in, by position
    targets: list[torch.Tensor]  # where to
    fills: list[tuple[torch.Tensor, object]]  # pad regions and what they are filled with
    outputs: list[torch.Tensor]  # the real part of each output
    sent: int  # elements of the copied inputs, and of the buffers they are copied into
    run: int


class Entry:
    """One entry point of a loaded model; call it with tensors by position, by name, or as one packed argument."""

    def __init__(
        self,
        program: Program,
        spec: EntryPoint,
        pool: Pool,
        capture: Callable[[int, Mapping[int, torch.Tensor]], Captured],
        *,
        clone_outputs: bool,
    ):
        self.spec = spec
        self._layouts = program.layouts
        self.counters = Counters(*([0] * len(spec.buckets) for _ in range(3)))
        self._pool, self._capture, self._clone = pool, capture, clone_outputs
        self._names = tuple(item.name for item in spec.inputs)
        self._dtypes = tuple(dtype(item.dtype) for item in spec.inputs)
        self._mutated = tuple(i for i, item in enumerate(spec.inputs) if item.kind == "mutated")
        self._pack = packer(spec.structure)
        self._plans: OrderedDict[tuple, CallPlan] = OrderedDict()
        self._captured: dict[tuple, Captured] = {}

    def __call__(self, *args, **kwargs):
        plain = len(args) == len(self._names) and not kwargs and isinstance(args[0], torch.Tensor)
        return self._pack(self.flat(args if plain else self._arguments(args, kwargs)))

    def flat(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """One call with the inputs in the signature's order; gives the outputs as a flat list.

        Raises a subclass of CallError, having changed nothing, where the inputs do not fit.
        """
        device = self._pool.device.torch_device
        for tensor, dtype_ in zip(tensors, self._dtypes):
            if not isinstance(tensor, torch.Tensor) or tensor.dtype is not dtype_ or tensor.device != device:
                self._refuse(tensors)
        key = self._key(tensors)
        with self._pool.lock:
            plan = self._plans.get(key) or self._plan(key, tensors)
            return self._replay(plan, tensors)

    def named_outputs(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """One call with inputs by name; the outputs by their names in the structure (`structure.leaf_names`)."""
        return dict(zip(leaf_names(self.spec.structure), self.flat(self._arguments((), inputs)), strict=True))

    def capture(self, number: int) -> None:
        """Capture a bucket ahead of its first call; one with mutated inputs has to wait for their addresses."""
        if not self._mutated:
            with self._pool.lock:
                self._get_captured(number, {})

    def close(self) -> None:
        """Forget everything captured; later calls raise ClosedError."""
        with self._pool.lock:
            self._plans.clear()
            for captured in self._captured.values():
                captured.graph.reset()
            self._captured.clear()
            self._capture = _closed

    @contextlib.contextmanager
    def without_replay(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Calls like the one with `tensors` do everything but the replay: what is left to time is the host's work."""
        self.flat(tensors)
        with self._pool.lock:
            plan = self._plans[self._key(tensors)]
            graph, plan.captured.graph = plan.captured.graph, _NOTHING
        try:
            yield
        finally:
            plan.captured.graph = graph

    def _get_captured(self, number: int, caller: Mapping[int, torch.Tensor]) -> Captured:
        key = (number, *(tensor.data_ptr() for tensor in caller.values()))
        if key not in self._captured:
            self._captured[key] = self._capture(number, caller)
        return self._captured[key]

    def _key(self, tensors: Sequence[torch.Tensor]) -> tuple:
        """What a call's plan depends on: the shapes, and the addresses of mutated inputs."""
        shapes = tuple([tensor.shape for tensor in tensors])
        return shapes + tuple([tensors[i].data_ptr() for i in self._mutated]) if self._mutated else shapes

    # ---- one call, in order ---------------------------------------------------------------------------------

    def _replay(self, plan: CallPlan, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        pool, counters, number = self._pool, self.counters, plan.number
        pool.overwrite()
        guard = torch._C._InferenceMode(True)
        try:
            for region, value in plan.fills:
                region.fill_(value)
            if plan.targets:
                torch._foreach_copy_(plan.targets, [tensors[i] for i in plan.copied])
            plan.captured.graph.replay()
        finally:
            del guard
        counters.calls[number] += 1
        counters.sent[number] += plan.sent
        counters.run[number] += plan.run
        if self._clone:
            return [output.clone() for output in plan.outputs]
        outputs = [output.detach() for output in plan.outputs]
        pool.hand_out(outputs)
        return outputs

    def _arguments(self, args: Sequence, kwargs: Mapping) -> Sequence[torch.Tensor]:
        """The inputs in the signature's order, however they were passed."""
        if len(args) == 1 and not kwargs and not isinstance(args[0], torch.Tensor):
            if isinstance(args[0], Mapping):
                return self._arguments((), args[0])
            if isinstance(args[0], (tuple, list)):
                args = tuple(args[0])
        names = self._names
        if len(args) > len(names):
            raise self._argument_error(f"{len(args)} positional arguments")
        given = dict(zip(names, args))
        for name, value in kwargs.items():
            if name not in names:
                raise self._argument_error(f"the unknown argument {name!r}")
            if name in given:
                raise self._argument_error(f"the argument {name!r} twice")
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            raise self._argument_error("no " + ", ".join(repr(name) for name in missing))
        return [given[name] for name in names]

    def _refuse(self, tensors: Sequence) -> None:
        """Raises what is wrong with the inputs' types, dtypes and devices, where anything is."""
        device = self._pool.device.torch_device
        for spec, kind, tensor in zip(self.spec.inputs, self._dtypes, tensors, strict=True):
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

    def _argument_error(self, got: str, fix: str = "") -> ArgumentError:
        text = ", ".join(f"{item.name}: {item.dtype}{shape_text(self.spec, item.shape)}" for item in self.spec.inputs)
        return ArgumentError("the arguments do not fit", where=self.spec.name, expected=text, got=got, fix=fix)

    # ---- the first call with some shapes ------------------------------------------------------------------------

    def _plan(self, key: tuple, tensors: Sequence[torch.Tensor]) -> CallPlan:
        sizes = read_sizes(self.spec, [tensor.shape for tensor in tensors])
        number = choose(self.spec, sizes)
        self._check_mutated(tensors, number)
        captured = self._get_captured(number, {i: tensors[i] for i in self._mutated})
        bound = captured.bound
        copied = tuple(i for i in range(len(tensors)) if i not in self._mutated)
        plan = CallPlan(
            number,
            captured,
            copied,
            [_part(bound.inputs[i], tensors[i].shape) for i in copied],
            [fill for i in copied for fill in self._fills(i, bound.inputs[i], tensors[i].shape)],
            [
                _part(output, [evaluate(expr, sizes) for expr in spec.shape])
                for output, spec in zip(bound.outputs, self.spec.outputs)
            ],
            sum(tensors[i].numel() for i in copied),
            sum(bound.inputs[i].numel() for i in copied),
        )
        self._plans[key] = plan
        if len(self._plans) > _PLANS:
            self._plans.popitem(last=False)
        return plan

    def _fills(self, position: int, buffer: torch.Tensor, shape: Sequence[int]) -> list[tuple[torch.Tensor, object]]:
        """The pad regions of an input's buffer, one for each padded axis, and what to fill them with."""
        spec = self.spec.inputs[position]
        value = spec.pad
        if value == "any":
            if buffer.dtype.is_floating_point:
                return []  # the build proved that NaN and infinities do no harm, so what lies there does none
            # Any legal value will do, but what lies there may not be one: an index out of range, say.
            value = int(spec.value_range[0]) if spec.value_range else 0
        axes = [axis for axis, size in enumerate(shape) if size < buffer.shape[axis]]
        return [(buffer.narrow(axis, shape[axis], buffer.shape[axis] - shape[axis]), value) for axis in axes]

    def _check_mutated(self, tensors: Sequence[torch.Tensor], number: int) -> None:
        """Raises ShapeError where a mutated input does not lie as the program will address it."""
        for i in self._mutated:
            bucket = self.spec.buckets[number]
            want = self._layouts[bucket.tensors[bucket.inputs[i]].layout]
            if tensors[i].shape != want.shape or tensors[i].stride() != want.strides:
                raise ShapeError(
                    f"the mutated input {self._names[i]!r} is used in place and must lie as the program expects",
                    where=f"{self.spec.name}, bucket {describe(self.spec, bucket.sizes)}",
                    expected=f"shape {list(want.shape)}, strides {list(want.strides)}",
                    got=f"shape {list(tensors[i].shape)}, strides {list(tensors[i].stride())}",
                )


def _part(buffer: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The leading part of `buffer` with that shape."""
    for axis, size in enumerate(shape):
        if size != buffer.shape[axis]:
            buffer = buffer.narrow(axis, 0, size)
    return buffer


class _Nothing:
    def replay(self) -> None:
        pass

    def reset(self) -> None:
        pass


_NOTHING = _Nothing()


def _closed(*_: object) -> Captured:
    raise ClosedError("the model was closed", fix="load it again")
