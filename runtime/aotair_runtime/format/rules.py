"""Whether a decoded program keeps the rules of the format: every number it holds is checked before it is believed."""

import re
from collections.abc import Iterator

from ..errors import MalformedError
from .dotted_names import PLAIN
from .host_lists import list_inputs
from .schema import (
    Arg,
    Bucket,
    DTypeArg,
    EntryPoint,
    Expr,
    Form,
    HostArg,
    Input,
    Instruction,
    LayoutArg,
    MemoryFormatArg,
    Output,
    Placement,
    Program,
    Space,
    TensorArg,
    Tree,
    WorkspaceArg,
)
from .sizes import evaluate
from .stream_rules import stream_fault
from .structure import children
from .torch_names import dtype, layout, memory_format

_MAX_BYTES = 1 << 46
_MOST_STREAMS = 64  # of one bucket
_KINDS = ("", "weight", "fixed", "derived")  # of constants
_DIGEST = re.compile(r"([0-9a-f]{64})?")
_INPUT_SPACES = (Space.CALLER, Space.INPUT)
READ_ONLY = (Space.CONSTANT, Space.INPUT)  # no instruction may write there


def check_program(program: Program, where: str) -> None:
    """Raises MalformedError at the first rule that the program breaks."""
    rules = _Rules(program, where)
    rules.tables()
    rules.origins()
    names = [entry.name for entry in program.entry_points]
    rules.require(bool(names) and len(set(names)) == len(names), "entry_points", "distinct names")
    for number, entry in enumerate(program.entry_points):
        rules.entry_point(entry, f"entry_points[{number}]")


class _Rules:
    def __init__(self, program: Program, where: str):
        self.program, self.where = program, where

    def require(self, truth: bool, path: str, expected: str, got: object = None) -> None:
        if not truth:
            text = "" if got is None else repr(got)[:80]
            raise MalformedError(
                f"program.{path} breaks a rule of the format", where=self.where, expected=expected, got=text
            )

    def index(self, value: int, count: int, path: str) -> None:
        self.require(0 <= value < count, path, f"a number from 0 to {count - 1}", value)

    def nbytes(self, name: str, shape: tuple[int, ...], path: str) -> int:
        self.require(all(0 <= size < _MAX_BYTES for size in shape), path, "sizes that are not negative", shape)
        total = dtype(name, self.where).itemsize
        for size in shape:
            total *= size
        self.require(total < _MAX_BYTES, path, "a tensor of a possible size", total)
        return total

    def tables(self) -> None:
        program = self.program
        step = program.alignment
        self.require(16 <= step <= 4096 and not step & (step - 1), "alignment", "a power of two from 16 to 4096", step)
        fits = 0 <= program.arena < _MAX_BYTES and program.arena % step == 0
        self.require(fits, "arena", f"a possible number of bytes that {step} divides", program.arena)
        for i, constant in enumerate(program.constants):
            self.nbytes(constant.dtype, constant.shape, f"constants[{i}].shape")
        for i, state in enumerate(program.state):
            self.index(state.constant, len(program.constants), f"state[{i}].constant")
        need, reserve = program.requirements, program.reserve
        for path, number in (
            ("requirements.memory_budget", need.memory_budget),
            ("reserve.workspace", reserve.workspace),
            ("reserve.device", reserve.device),
        ):
            self.require(0 <= number < _MAX_BYTES, path, "a possible number of bytes", number)
        self.require(0 <= need.memory_share <= 1, "requirements.memory_share", "a share", need.memory_share)
        for i, item in enumerate(program.layouts):
            path = f"layouts[{i}]"
            self.require(len(item.shape) == len(item.strides), path, "as many strides as sizes")
            self.require(
                all(0 <= s < _MAX_BYTES for s in item.strides), path, "strides that are not negative", item.strides
            )
            self.nbytes(item.dtype, item.shape, path)
        for i, instruction in enumerate(program.instructions):
            self.require(instruction.form in list(Form), f"instructions[{i}].form", "a form", instruction.form)
            if instruction.form in (Form.RECORD, Form.WAIT):
                self.event(instruction, f"instructions[{i}]")
            else:
                self.index(instruction.op, len(program.ops), f"instructions[{i}].op")

    def origins(self) -> None:
        """What constants stand for, and what the program follows from."""
        program = self.program
        seen = set(program.unread)
        self.require(len(seen) == len(program.unread), "unread", "distinct names")
        for i, constant in enumerate(program.constants):
            path = f"constants[{i}]"
            self.require(constant.kind in _KINDS, f"{path}.kind", "a kind of constant", constant.kind)
            fits = bool(constant.names) == bool(constant.kind) and all(constant.names)
            self.require(fits, f"{path}.names", "names for what is recorded", constant.names)
            for name in (name for group in constant.names for name in group):
                self.require(name not in seen, f"{path}.names", "names that nothing else has", name)
                seen.add(name)
        origin = program.origin
        for field in ("recipe", "code", "graph"):
            text = getattr(origin, field)
            self.require(bool(_DIGEST.fullmatch(text)), f"origin.{field}", "a digest or nothing", text)

    def event(self, item: Instruction, path: str) -> None:
        plain = item.op == -1 and not item.kwargs and not item.outs and len(item.args) == 1
        self.require(plain and type(item.args[0]) is int, path, "the number of an event and nothing else", item.args)

    def entry_point(self, entry: EntryPoint, path: str) -> None:
        self.require(bool(entry.buckets), f"{path}.buckets", "at least one bucket")
        for i, spec in enumerate(entry.inputs):
            self.require(spec.kind in ("user", "mutated"), f"{path}.inputs[{i}].kind", "user or mutated", spec.kind)
            dtype(spec.dtype, self.where)
            self.require(
                not spec.host or _may_be_host(spec), f"{path}.inputs[{i}]", "a host input of int64, with a range", spec
            )
            fits = spec.pad is None or spec.pad == "any" or isinstance(spec.pad, (bool, int, float))
            self.require(fits, f"{path}.inputs[{i}].pad", "a number, 'any' or nothing", spec.pad)
            for expr in spec.shape:
                self.expr(expr, entry, f"{path}.inputs[{i}].shape", plain=True)
        seen = {expr[1] for spec in entry.inputs for expr in spec.shape if isinstance(expr, tuple)}
        self.require(
            seen == set(range(len(entry.dims))), f"{path}.dims", "dimensions that the inputs show", len(entry.dims)
        )
        for i, dim in enumerate(entry.dims):
            self.require(0 <= dim.least < _MAX_BYTES, f"{path}.dims[{i}].least", "a possible size", dim.least)
        for i, output in enumerate(entry.outputs):
            dtype(output.dtype, self.where)
            for expr in output.shape:
                self.expr(expr, entry, f"{path}.outputs[{i}].shape")
        self.tree(entry.structure, len(entry.outputs), f"{path}.structure")
        self.arguments(entry, path)
        order = sorted(entry.capture_order)
        self.require(
            order == list(range(len(entry.buckets))), f"{path}.capture_order", "each bucket once", entry.capture_order
        )
        for i, bucket in enumerate(entry.buckets):
            self.bucket(bucket, entry, f"{path}.buckets[{i}]")
        listed = set(list_inputs(self.program, entry))
        for i, bucket in enumerate(entry.buckets):
            self.unread(bucket, listed, f"{path}.buckets[{i}]")

    def arguments(self, entry: EntryPoint, path: str) -> None:
        """The names of inputs and constants differ, and none lies within another."""
        names = [*(spec.name for spec in entry.inputs), *(name for name, _ in entry.constants)]
        inner = {name[:end] for name in names for end, sign in enumerate(name) if sign == "."}
        fits = len(set(names)) == len(names) and not inner & set(names)
        self.require(fits, f"{path}.inputs", "names of their own, none within another", names)
        for name, value in entry.constants:
            self.require(isinstance(value, PLAIN), f"{path}.constants", f"a plain value for {name}", value)

    def expr(self, expr: Expr, entry: EntryPoint, path: str, *, plain: bool = False) -> None:
        if isinstance(expr, int):
            self.require(expr >= 0 or not plain, path, "a size", expr)
            return
        if expr[0] == "dim":
            self.index(expr[1], len(entry.dims), path)
            return
        self.require(not plain, path, "a number or a dimension", expr)
        operator, *operands = expr
        for operand in operands:
            self.expr(operand, entry, path)
        if operator in ("//", "%"):
            self.require(all(isinstance(o, int) and o > 0 for o in operands[1:]), path, "a positive divisor", expr)

    def tree(self, tree: Tree, count: int, path: str) -> None:
        if tree[0] == "tensor":
            self.index(tree[1], count, path)
        elif tree[0] != "const":
            if tree[0] == "named":
                fits = len({*tree[2]}) == len(tree[2]) and all(map(_is_public, tree[2])) and tree[1].isidentifier()
                self.require(fits, path, "the names of a named tuple", tree[1:3])
            for child in children(tree):
                self.tree(child, count, path)

    def bucket(self, bucket: Bucket, entry: EntryPoint, path: str) -> None:
        self.require(len(bucket.sizes) == len(entry.dims), f"{path}.sizes", f"{len(entry.dims)} sizes", bucket.sizes)
        self.require(
            all(0 < size < _MAX_BYTES for size in bucket.sizes), f"{path}.sizes", "positive sizes", bucket.sizes
        )
        self.require(0 <= bucket.height <= self.program.arena, f"{path}.height", "at most the arena", bucket.height)
        for i, placement in enumerate(bucket.tensors):
            self.placement(placement, entry, f"{path}.tensors[{i}]")
        for group, specs in ((bucket.inputs, entry.inputs), (bucket.outputs, entry.outputs)):
            self.require(len(group) == len(specs), path, "a tensor for each input and output", len(group))
            for number in group:
                self.index(number, len(bucket.tensors), path)
        self.interface(bucket, entry, path)
        for number in bucket.code:
            self.index(number, len(self.program.instructions), f"{path}.code")
            self.instruction(self.program.instructions[number], bucket, f"instructions[{number}] in {path}")
        self.updates(bucket, entry, path)
        self.streams(bucket, path)
        self.fresh(bucket, path)

    def fresh(self, bucket: Bucket, path: str) -> None:
        for i, item in enumerate(bucket.fresh):
            self.index(item.op, len(self.program.ops), f"{path}.fresh[{i}].op")
            self.index(item.stream, bucket.streams, f"{path}.fresh[{i}].stream")
            fits = 0 <= item.nbytes < _MAX_BYTES and 0 <= item.calls <= len(bucket.code)
            self.require(fits, f"{path}.fresh[{i}]", "possible numbers of bytes and calls", item)

    def streams(self, bucket: Bucket, path: str) -> None:
        self.require(1 <= bucket.streams <= _MOST_STREAMS, f"{path}.streams", "a possible number", bucket.streams)
        self.require(0 <= bucket.events <= len(bucket.code), f"{path}.events", "a possible number", bucket.events)
        fits = not bucket.priorities or len(bucket.priorities) == bucket.streams
        self.require(fits, f"{path}.priorities", "a priority for each stream", bucket.priorities)
        in_range = all(-100 <= priority <= 100 for priority in bucket.priorities)
        self.require(in_range, f"{path}.priorities", "priorities from -100 to 100", bucket.priorities)
        code = [self.program.instructions[number] for number in bucket.code]
        fault = stream_fault(code, bucket.streams, bucket.events)
        self.require(not fault, f"{path}.code", "streams that fork from stream 0 and join it", fault)

    def placement(self, item: Placement, entry: EntryPoint, path: str) -> None:
        self.index(item.layout, len(self.program.layouts), path)
        found = self.program.layouts[item.layout]
        room = self.room(item, entry, path)
        width = dtype(found.dtype, self.where).itemsize
        empty = 0 in found.shape
        extent = 0 if empty else (1 + sum((n - 1) * s for n, s in zip(found.shape, found.strides))) * width
        self.require(
            item.offset >= 0 and item.offset % width == 0, path, f"an offset that {width} divides", item.offset
        )
        self.require(item.offset + extent <= room, path, f"a tensor within {room} bytes", item.offset + extent)

    def room(self, item: Placement, entry: EntryPoint, path: str) -> int:
        """The bytes of the memory that a placement points into."""
        program = self.program
        if item.space == Space.ARENA:
            return program.arena
        if item.space in _INPUT_SPACES:
            self.index(item.index, len(entry.inputs), path)
            kind = "mutated" if item.space == Space.CALLER else "user"
            self.require(entry.inputs[item.index].kind == kind, path, f"a {kind} input", item.index)
            return _MAX_BYTES  # its size is that of the bucket: `interface` compares the layouts
        self.require(item.space in (Space.CONSTANT, Space.STATE), path, "a space", item.space)
        count = len(program.constants if item.space == Space.CONSTANT else program.state)
        self.index(item.index, count, path)
        constant = program.constants[program.state[item.index].constant if item.space == Space.STATE else item.index]
        return self.nbytes(constant.dtype, constant.shape, path)

    def interface(self, bucket: Bucket, entry: EntryPoint, path: str) -> None:
        """The tensors that stand for inputs and outputs are what the entry point promises, in memory they may use."""
        for i, (number, spec) in enumerate(zip(bucket.inputs, entry.inputs)):
            self.promised(bucket, number, spec, f"{path}.inputs[{i}]")
            homes = (Space.CALLER,) if spec.kind == "mutated" else (Space.INPUT, Space.ARENA)  # ARENA in format 1
            space = bucket.tensors[number].space
            self.require(space in homes, f"{path}.inputs[{i}]", f"memory of the kind {homes[0].name}", space)
        for i, (number, output) in enumerate(zip(bucket.outputs, entry.outputs)):
            self.promised(bucket, number, output, f"{path}.outputs[{i}]")
            self.require(
                bucket.tensors[number].space != Space.CONSTANT, f"{path}.outputs[{i}]", "memory that may be written"
            )
        self.input_memory(bucket, entry, path)

    def promised(self, bucket: Bucket, number: int, spec: Input | Output, path: str) -> None:
        found = self.program.layouts[bucket.tensors[number].layout]
        shape = tuple(evaluate(expr, bucket.sizes) for expr in spec.shape)
        self.require(
            found.dtype == spec.dtype and found.shape == shape, path, f"{spec.dtype}{list(shape)}",
            f"{found.dtype}{list(found.shape)}",
        )  # fmt: skip

    def input_memory(self, bucket: Bucket, entry: EntryPoint, path: str) -> None:
        """No tensor reaches beyond the input it lies in, and the copies of inputs lie in the arena."""
        room = {}
        for position, number in enumerate(bucket.inputs):
            item = bucket.tensors[number]
            if item.space in _INPUT_SPACES:
                self.require(item.index == position and not item.offset, path, "its own input", item)
                room[position] = self.extent(item)
            if item.space == Space.INPUT:
                self.copy_place(bucket, position, room[position], f"{path}.input_offsets[{position}]")
        for item in bucket.tensors:
            if item.space in _INPUT_SPACES:
                self.require(self.extent(item) <= room[item.index], path, "a tensor within its input")

    def copy_place(self, bucket: Bucket, position: int, extent: int, path: str) -> None:
        self.require(len(bucket.input_offsets) == len(bucket.inputs), path, "an offset for each input")
        offset = bucket.input_offsets[position]
        fits = offset >= 0 and not offset % self.program.alignment and offset + extent <= self.program.arena
        self.require(fits, path, "a place within the arena", offset)

    def extent(self, item: Placement) -> int:
        found = self.program.layouts[item.layout]
        if 0 in found.shape:
            return item.offset
        reach = 1 + sum((n - 1) * s for n, s in zip(found.shape, found.strides))
        return item.offset + reach * dtype(found.dtype, self.where).itemsize

    def instruction(self, instruction: Instruction, bucket: Bucket, path: str) -> None:
        for number in instruction.outs:
            self.require(-1 <= number < len(bucket.tensors), path, "tensors of the bucket", number)
            if number >= 0:
                space = bucket.tensors[number].space
                self.require(space not in READ_ONLY, path, "results outside constants and user inputs", number)
        for _, value in instruction.kwargs:
            if isinstance(value, WorkspaceArg):
                self.index(value.op, len(self.program.ops), f"{path}.workspace")
        named = (value for _, value in instruction.kwargs if not isinstance(value, (HostArg, WorkspaceArg)))
        for value in (*instruction.args, *named):
            self.argument(value, bucket, path)

    def updates(self, bucket: Bucket, entry: EntryPoint, path: str) -> None:
        """Host arguments name host inputs, and only beside them are there workspaces."""
        code = [self.program.instructions[number] for number in bucket.code]
        named = [[value for _, value in item.kwargs if isinstance(value, HostArg)] for item in code]
        for arg in (arg for args in named for arg in args):
            self.index(arg.input, len(entry.inputs), f"{path}.code")
            self.require(entry.inputs[arg.input].host, f"{path}.code", "a host input", arg.input)
        count = sum(map(bool, named))
        self.require(count == bucket.updated, f"{path}.updated", f"{count}", bucket.updated)
        for item, args in zip(code, named):
            with_workspace = any(isinstance(value, WorkspaceArg) for _, value in item.kwargs)
            self.require(bool(args) or not with_workspace, f"{path}.code", "a workspace beside host arguments")
            self.require(not args or item.form != Form.COPY, f"{path}.code", "host arguments of an op that writes")

    def unread(self, bucket: Bucket, listed: set[int], path: str) -> None:
        """What some instruction of the entry point takes as a list, none reads as a tensor: it is not copied."""
        code = [self.program.instructions[number] for number in bucket.code]
        mine = {n for n, at in enumerate(bucket.tensors) if at.space == Space.INPUT and at.index in listed}
        used = {n for item in code for n in (*item.outs, *_tensors((*item.args, *(v for _, v in item.kwargs))))}
        self.require(not mine & (used | set(bucket.outputs)), f"{path}.code", "a list that is no tensor", mine & used)

    def argument(self, value: Arg, bucket: Bucket, path: str) -> None:
        if isinstance(value, tuple):
            for item in value:
                self.argument(item, bucket, path)
        elif isinstance(value, TensorArg):
            self.index(value.index, len(bucket.tensors), path)
        elif isinstance(value, (HostArg, WorkspaceArg)):
            self.require(False, path, "host arguments by name, not within others", value)
        elif isinstance(value, DTypeArg):
            dtype(value.name, self.where)
        elif isinstance(value, MemoryFormatArg):
            memory_format(value.name, self.where)
        elif isinstance(value, LayoutArg):
            layout(value.name, self.where)


def _is_public(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_")


def _may_be_host(spec: Input) -> bool:
    low, high = spec.value_range if spec.value_range and len(spec.value_range) == 2 else (0, 0)
    plain = spec.kind == "user" and spec.dtype == "int64" and len(spec.shape) == 1
    return plain and -_MAX_BYTES < low < high < _MAX_BYTES and (spec.pad in (None, "any") or type(spec.pad) is int)


def _tensors(values: tuple[Arg, ...]) -> Iterator[int]:
    """The tensors among arguments, by number."""
    for value in values:
        if isinstance(value, TensorArg):
            yield value.index
        elif isinstance(value, tuple):
            yield from _tensors(value)
