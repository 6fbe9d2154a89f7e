"""What a call with one set of shapes does: which bucket serves it, what is copied and filled, where results lie."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..capture.bind import can_be
from ..capture.captured import Captured
from ..capture.graphs import Graphs
from ..capture.pool import Pool
from ..errors import ArgumentError, MalformedError, ShapeError
from ..format.host_inputs import filling
from ..format.schema import Bucket, Layout, Space
from ..format.sizes import describe, evaluate
from ..format.torch_names import dtype
from ..memory.held import Held
from ..memory.overlap import Span, is_plain, meet, same_place, span, with_copies
from .buckets import choose, read_sizes
from .signature import Signature, Tensors

CopiesOf = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


@dataclass(slots=True)
class CallPlan:
    """Worked out at the first call with its shapes."""

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


class Planner:
    """Makes the plans of an entry point's calls, over the graphs that it has captured."""

    def __init__(
        self,
        signature: Signature,
        layouts: Sequence[Layout],
        states: Sequence[torch.Tensor],
        graphs: Graphs,
        held: Mapping[Pool, Held],
        copies: CopiesOf,
    ):
        self._signature, self._layouts, self._graphs = signature, layouts, graphs
        self._states = [span(state) for state in states]
        self._held, self._copies = held, copies

    def plan(
        self, tensors: Tensors, static: Sequence[int], own: Collection[int], number: int | None = None
    ) -> tuple[CallPlan, Tensors]:
        """The plan for calls like this one, in the smallest bucket that holds it, or in that of a `number`; `static`
        inputs may be used where they lie.

        `own` are the inputs at addresses of buffers that were handed out: only of these may one not be copied. Another
        that lies in its buffer by chance, an output of an earlier call say, is copied as its shape's next one will have
        to be. Gives the inputs too: copies of those that a capture has overwritten.
        """
        spec, listed = self._signature.spec, self._signature.hosts.listed
        shapes = [shape_of(tensor) for tensor in tensors]
        sizes = read_sizes(spec, shapes)
        number = choose(spec, sizes) if number is None else number
        bucket, pool = spec.buckets[number], self._graphs.pools[number]
        self.check_mutated(tensors, number)
        captured, kept = self._captured(number, sizes, tensors, static)
        buffers = {i: buffer for i, buffer in enumerate(captured.buffers) if buffer is not None and i not in listed}
        parts = {i: _part(buffer, tensors[i].shape) for i, buffer in buffers.items()}
        copied = tuple(i for i, part in parts.items() if i not in own or not same_place(part, tensors[i]))
        placed = [
            None if output is None else _part(output, [evaluate(expr, sizes) for expr in result.shape])
            for output, result in zip(captured.outputs, spec.outputs)
        ]
        fills = [(i, *fill) for i in buffers for fill in self._fills(i, buffers[i], tensors[i].shape)]
        for i in (i for i in own if i in parts and i not in copied and kept[i] is not tensors[i]):
            with torch.inference_mode():
                parts[i].copy_(kept[i])
        plan = CallPlan(
            number=number,
            pool=pool,
            captured=captured,
            copied=copied,
            all_copied=copied == self._signature.users,
            targets=[parts[i] for i in copied],
            fills=[(region, value) for _, region, value in fills],
            padded=[copied.index(i) if i in copied else -1 for i, *_ in fills],
            placed=placed,
            outputs=[output for output in placed if output is not None],
            in_caller=None in captured.outputs,
            filling=self._filling(bucket, shapes) if tuple(sizes) != bucket.sizes else None,
            sent=sum(tensors[i].numel() for i in buffers),
            run=sum(buffer.numel() for buffer in buffers.values()),
            arena=pool.span,
            held=self._held[pool],
        )
        return plan, kept

    def _captured(
        self, number: int, sizes: Sequence[int], tensors: Tensors, static: Sequence[int]
    ) -> tuple[Captured, Tensors]:
        """The bucket's graph over the inputs that are used where they lie, and all inputs as they were before it was
        captured."""
        usable = self._usable_in_place(number, sizes, tensors, static)
        in_place = {i: tensors[i] for i in (*self._signature.mutated, *usable)}
        has = self._graphs.has(number, in_place)
        kept = tensors if has else self._saved(self._graphs.pools[number], tensors)
        return self._graphs.get(number, in_place), kept

    def _saved(self, pool: Pool, tensors: Tensors) -> Tensors:
        """The inputs before a capture that may run the bucket: copies of those that lie in the pool."""
        numbers = [i for i in self._signature.users if meet(span(tensors[i]), pool.span)]
        if not numbers:
            return tensors
        pool.enter()
        with torch.inference_mode():
            return with_copies(tensors, numbers, self._copies)

    def _filling(self, bucket: Bucket, shapes: Sequence[torch.Size]) -> list[list[int]]:
        listed, inputs = self._signature.hosts.listed, self._signature.spec.inputs
        wanted = [self._layouts[bucket.tensors[bucket.inputs[i]].layout].shape[0] for i in listed]
        return [filling(inputs[i], want - shapes[i][0]) for i, want in zip(listed, wanted)]

    def _usable_in_place(
        self, number: int, sizes: Sequence[int], tensors: Tensors, static: Sequence[int]
    ) -> Sequence[int]:
        """Of the user inputs that may be used where they lie, those that the program addresses as such (none where the
        call is padded, or the artifact is of a format in which inputs are always copied), that the replay does not
        write, and that lie so that every dtype in which the program looks at them can."""
        bucket = self._signature.spec.buckets[number]
        if tuple(sizes) != bucket.sizes:
            return ()
        written = (self._graphs.pools[number].span, *self._states)
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

    def _fills(self, position: int, buffer: torch.Tensor, shape: Sequence[int]) -> Iterator[tuple[torch.Tensor, float]]:
        """The pad regions of an input's buffer, one for each padded axis, and what to fill them with."""
        spec = self._signature.spec.inputs[position]
        value = spec.pad
        if value == "any":
            if buffer.dtype.is_floating_point:
                return  # the build proved that NaN and infinities do no harm, so what lies there does none
            # Any legal value will do, but what lies there may not be one: an index out of range, say.
            value = int(spec.value_range[0]) if spec.value_range else 0
        for axis, size in enumerate(shape):
            if size == buffer.shape[axis]:
                continue
            if value is None:
                where = f"{self._signature.spec.name}, the input {spec.name!r}"
                raise MalformedError("it is padded, and the artifact does not say with what", where=where)
            yield buffer.narrow(axis, size, buffer.shape[axis] - size), value

    def check_mutated(self, tensors: Tensors, number: int) -> None:
        """Raises ShapeError where a mutated input does not lie as the program will address it, and ArgumentError where
        it shares memory with another, or with what the model itself writes."""
        spec = self._signature.spec
        bucket, seen = spec.buckets[number], [self._graphs.pools[number].span, *self._states]
        where = f"{spec.name}, bucket {describe(spec, bucket.sizes)}"
        for i in self._signature.mutated:
            want, tensor = self._layouts[bucket.tensors[bucket.inputs[i]].layout], tensors[i]
            name = self._signature.names[i]
            lies = is_plain(tensor) and all(can_be(tensor, kind) for kind in self._kinds(bucket, i))
            if tensor.shape != want.shape or not lies:
                start = tensor.storage_offset()
                raise ShapeError(
                    f"the mutated input {name!r} is used in place and must lie as the program expects",
                    where=where,
                    expected=f"shape {list(want.shape)}, strides {list(want.strides)}, aligned, no conjugate view",
                    got=f"shape {list(tensor.shape)}, strides {list(tensor.stride())}, storage offset {start}",
                )
            if any(meet(span(tensor), other) for other in seen):
                raise ArgumentError(
                    f"the mutated input {name!r} shares memory with the model's own, or with another mutated input",
                    where=where,
                    expected="memory of the caller's that nothing else in this call writes",
                    fix=f"pass a copy: {name}.clone(); outputs and states lie in the model's memory",
                )
            seen.append(span(tensor))


def shape_of(value: torch.Tensor | list[int]) -> torch.Size:
    """The shape of an input; a list has its length."""
    return value.shape if isinstance(value, torch.Tensor) else torch.Size((len(value),))


def _part(buffer: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The leading part of `buffer` with that shape."""
    for axis, size in enumerate(shape):
        if size != buffer.shape[axis]:
            buffer = buffer.narrow(axis, 0, size)
    return buffer
