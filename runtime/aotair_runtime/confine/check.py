"""Whether a program's calls stay within the tensors that they are given, found out before any of them is made.

Each instruction's arguments have to be of the types that its op's schema says. Each distinct call, by the shapes of its
tensors, then has to return what is planned: by a rule of `shapes`, or tried once on the meta device.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..errors import MalformedError
from ..format.extents import reach
from ..format.host_inputs import inputs_as_arguments, legal_arguments
from ..format.packed import tensor_numbers
from ..format.schema import Arg, Bucket, Form, Instruction, Placement, Program, Space, TensorArg
from ..format.sizes import describe
from ..format.torch_names import dtype
from ..format.values import Lists
from ..format.written import written_arguments, written_names
from .arguments import arguments_by_name, check_arguments
from .demands import Call, check_demands
from .meta import Meta
from .op_table import Allowed, demands
from .shapes import result_shapes


def check_calls(program: Program, ops: Sequence[torch._ops.OpOverload], allowed: Allowed, where: str) -> None:
    """Raises MalformedError at the first instruction whose arguments are not those of its op, or whose results do not
    fit their places. `ops` are the program's, resolved; those that the caller vouches for may be unable to say what
    they return."""
    calls = _Calls(program, ops, [allowed.vouches(op.name) for op in program.ops], where)
    for entry in program.entry_points:
        lists = inputs_as_arguments(program, entry)
        for bucket in entry.buckets:
            legal = dict(zip(lists, legal_arguments(program, entry, bucket.sizes)))
            calls.check(bucket, legal, f"{where}, {entry.name}, bucket {describe(entry, bucket.sizes)}")
    for part in program.prologue.parts:
        calls.check(part.bucket, {}, f"{where}, the prologue")


class _Calls:
    """The calls of a program, each distinct one tried once."""

    def __init__(self, program: Program, ops: Sequence[torch._ops.OpOverload], vouched: Sequence[bool], where: str):
        self._program, self._ops, self._where = program, ops, where
        self._written = [written_names(op._schema) for op in ops]
        self._demands = [demands(op.name()) for op in ops]
        self._meta = Meta(program, ops, self._written, vouched)
        self._kinds: dict[str, int] = {}
        self._alike = [None if item.is_event else self._blank(item) for item in program.instructions]
        self._tried: set[tuple[int, ...]] = set()

    def check(self, bucket: Bucket, lists: Lists, where: str) -> None:
        fresh = {(one.op, one.stream): one.nbytes for one in bucket.fresh}
        lengths = tuple(map(len, lists.values()))
        for number in bucket.code:
            blank, item = self._alike[number], self._program.instructions[number]
            if blank is None:
                continue
            if len(item.outs) > 1 or self._demands[item.op].indices:
                self._apart(item, bucket, where)
            allowed = fresh.get((item.op, item.stream), 0)
            key = (blank.kind, allowed, *lengths, *[bucket.tensors[n].layout for n in blank.numbers])
            if key not in self._tried:
                self._try(item, bucket, lists, allowed, f"{where}: {item.node[:80]}")
                self._tried.add(key)

    def _try(self, item: Instruction, bucket: Bucket, lists: Lists, allowed: int, place: str) -> None:
        op, layouts = self._ops[item.op], self._program.layouts
        written = self._writes(item)
        results = frozenset(a.name for a in op._schema.arguments if a.is_out)
        call = Call(item, arguments_by_name(item, op), written, lambda n: layouts[bucket.tensors[n].layout], results)
        check_demands(call, self._demands[item.op], str(op), place)
        if rule := self._demands[item.op].shape:
            self._compare(call, rule, max(allowed, self._program.arena), place)
        else:
            self._meta.check(item, bucket, lists, allowed, place)

    def _compare(self, call: Call, rule: str, most: int, place: str) -> None:
        """All that a call writes has the shape that the rule gives it, and what it makes afresh has no more numbers
        than the `most` bytes that there are for it."""
        item, what = call.item, str(self._ops[call.item.op])
        shapes = result_shapes(call, rule, len(item.outs) or 1)
        if shapes is None or len(shapes) < len(item.outs):
            raise MalformedError(f"{what} does not take its arguments", where=place)
        named = [arg.index for arg in written_arguments(item, self._ops[item.op]._schema, self._written[item.op])]
        places = [*zip(item.outs, shapes), *zip(named, itertools.chain(shapes, itertools.repeat(shapes[-1])))]
        for planned, shape in ((call.layouts(number).shape, shape) for number, shape in places if number >= 0):
            if planned != shape:
                raise MalformedError(
                    f"a result of {what} does not fit its place",
                    where=place,
                    expected=f"the shape {list(planned)[:20]}, as planned",
                    got=f"{list(shape)[:20]}",
                )
        if item.form == Form.COPY and sum(map(math.prod, shapes)) > most:
            raise MalformedError(f"{what} returns more than the bucket says", where=place, expected=f"{most} bytes")

    def _writes(self, item: Instruction) -> tuple[int, ...]:
        """The tensors that an instruction writes to, by number."""
        named = written_arguments(item, self._ops[item.op]._schema, self._written[item.op])
        return (*(n for n in item.outs if n >= 0), *(arg.index for arg in named))

    def _blank(self, item: Instruction) -> "_Blank":
        """The numbers of the tensors that an instruction names, and one for all instructions that only differ there."""
        values = (*item.args, *(value for _, value in item.kwargs))
        numbers = (*tensor_numbers(values), *(n for n in item.outs if n >= 0))
        wanted, names = [n >= 0 for n in item.outs], [name for name, _ in item.kwargs]
        text = repr((item.op, item.form, item.stream, tuple(map(_without_numbers, values)), names, wanted))
        if text not in self._kinds:
            check_arguments(item, self._ops[item.op], self._where)
            self._kinds[text] = len(self._kinds)
        return _Blank(numbers, self._kinds[text])

    def _apart(self, item: Instruction, bucket: Bucket, where: str) -> None:
        """Results lie apart from each other, and all that is written from what is read as indices: an op checks these
        once."""
        given = arguments_by_name(item, self._ops[item.op])
        read = tuple(tensor_numbers(tuple(given[name] for name in self._demands[item.op].indices if name in given)))
        written = self._writes(item) if read else tuple(n for n in item.outs if n >= 0)
        spans = [self._span(bucket, bucket.tensors[n]) for n in (*written, *read)]
        for i, one in enumerate(spans[: len(written)]):
            if any(one.meets(other) for other in spans[i + 1 :]):
                what = f"{self._ops[item.op]} writes over its own results or indices"
                raise MalformedError(what, where=f"{where}: {item.node[:80]}")

    def _span(self, bucket: Bucket, item: Placement) -> "_Span":
        found = self._program.layouts[item.layout]
        home, start = (item.space, item.index), item.offset
        copied = bucket.input_offsets[item.index] if item.space == Space.INPUT and bucket.input_offsets else -1
        if item.space == Space.ARENA or copied >= 0:
            home, start = (Space.ARENA, 0), max(copied, 0) + item.offset
        return _Span(home, start, start + reach(found.shape, found.strides) * dtype(found.dtype).itemsize)


@dataclass(frozen=True)
class _Blank:
    numbers: tuple[int, ...]
    kind: int


@dataclass(frozen=True)
class _Span:
    """Bytes of one memory, from the first to before the last."""

    home: tuple[int, int]
    start: int
    stop: int

    def meets(self, other: "_Span") -> bool:
        return self.home == other.home and self.start < other.stop and other.start < self.stop


def _without_numbers(arg: Arg) -> object:
    """An argument without which tensor it names."""
    if isinstance(arg, TensorArg):
        return TensorArg
    return tuple(map(_without_numbers, arg)) if isinstance(arg, tuple) else arg
