"""Whether a program's calls stay within the tensors that they are given, found out before any of them is made.

Each instruction has to be one that the table holds, with arguments of the types that its op's schema says. Each
distinct call, by the shapes of its tensors, is then tried once on the meta device, and has to return what is planned.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..errors import MalformedError
from ..format.host_inputs import inputs_as_arguments, legal_arguments
from ..format.packed import tensor_numbers
from ..format.schema import Arg, Bucket, Instruction, Placement, Program, Space, TensorArg
from ..format.sizes import describe
from ..format.torch_names import dtype
from ..format.written import written_arguments, written_names
from .arguments import arguments_by_name, check_arguments
from .demands import Call, check_demands
from .meta import Lists, Meta
from .op_table import demands
from .shapes import result_shapes


def check_calls(program: Program, ops: Sequence[torch._ops.OpOverload], vouched: Sequence[bool], where: str) -> None:
    """Raises MalformedError at the first instruction whose arguments are not those of its op, or whose results do not
    fit their places. `ops` are the program's, resolved; those that the caller has `vouched` for may be unable to say
    what they return."""
    calls = _Calls(program, ops, vouched, where)
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
            self._compare(call, rule, str(op), place)
        else:
            self._meta.check(item, bucket, lists, allowed, place)

    def _compare(self, call: Call, rule: str, what: str, place: str) -> None:
        """What a call writes has the shape that the rule gives it, and what it returns beside that is small."""
        places = list(call.item.outs) if call.item.outs else list(call.written)
        shapes = result_shapes(call, rule, len(places) or 1)
        if shapes is None or (places and len(shapes) != len(places)):
            raise MalformedError(f"{what} does not take its arguments", where=place)
        for number, shape in zip(places, shapes):
            if number >= 0 and call.layouts(number).shape != shape:
                raise MalformedError(
                    f"a result of {what} does not fit its place",
                    where=place,
                    expected=f"the shape {list(call.layouts(number).shape)[:20]}, as planned",
                    got=f"{list(shape)[:20]}",
                )
        if any(math.prod(shape) > self._program.arena for number, shape in zip(places, shapes) if number < 0):
            raise MalformedError(f"{what} returns more than the arena holds, for nobody", where=place)

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
        reach = 0 if 0 in found.shape else 1 + sum((n - 1) * s for n, s in zip(found.shape, found.strides))
        home, start = (item.space, item.index), item.offset
        copied = bucket.input_offsets[item.index] if item.space == Space.INPUT and bucket.input_offsets else -1
        if item.space == Space.ARENA or copied >= 0:
            home, start = (Space.ARENA, 0), max(copied, 0) + item.offset
        return _Span(home, start, start + reach * dtype(found.dtype).itemsize)


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
