"""Whether a bucket keeps the rules of the format: its tensors, its instructions and its streams."""

from .demands import MAX_BYTES, Demands
from .extents import reach, turned, without_gaps
from .packed import has_packed, is_legal, read_packed, tensor_numbers
from .schema import (
    READ_ONLY,
    Arg,
    Bucket,
    Constant,
    DTypeArg,
    EntryPoint,
    Form,
    GroupArg,
    HostArg,
    Input,
    Instruction,
    LayoutArg,
    MemoryFormatArg,
    Output,
    Placement,
    Space,
    TensorArg,
    WorkspaceArg,
)
from .sizes import evaluate
from .stream_rules import stream_fault
from .torch_names import dtype, layout, memory_format

_MOST_STREAMS = 64  # of one bucket
_INPUT_SPACES = (Space.CALLER, Space.INPUT)


class BucketRules(Demands):
    """The rules of the buckets of an entry point."""

    def bucket(self, bucket: Bucket, entry: EntryPoint, path: str) -> None:
        self.require(len(bucket.sizes) == len(entry.dims), f"{path}.sizes", f"{len(entry.dims)} sizes", bucket.sizes)
        self.require(
            all(0 < size < MAX_BYTES for size in bucket.sizes), f"{path}.sizes", "positive sizes", bucket.sizes
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
        if has_packed(bucket):
            self.packed(bucket, path)
        self.updates(bucket, entry, path)
        self.streams(bucket, path)
        self.fresh(bucket, path)

    def fresh(self, bucket: Bucket, path: str) -> None:
        for i, item in enumerate(bucket.fresh):
            self.index(item.op, len(self.program.ops), f"{path}.fresh[{i}].op")
            self.index(item.stream, bucket.streams, f"{path}.fresh[{i}].stream")
            fits = 0 <= item.nbytes < MAX_BYTES and 0 <= item.calls <= len(bucket.code)
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
        extent = reach(found.shape, found.strides) * width
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
            return MAX_BYTES  # its size is that of the bucket: `interface` compares the layouts
        self.require(item.space in (Space.CONSTANT, Space.STATE, Space.PACKED), path, "a space", item.space)
        count = len(program.state if item.space == Space.STATE else program.constants)
        self.index(item.index, count, path)
        constant = program.constants[program.state[item.index].constant if item.space == Space.STATE else item.index]
        if item.space == Space.PACKED:
            self.whole(item, constant, path)
        return self.nbytes(constant.dtype, constant.shape, path)

    def whole(self, item: Placement, constant: Constant, path: str) -> None:
        """A packed constant is read as it is, turned, or with a row: nothing knows where its parts lie."""
        found, shape = self.program.layouts[item.layout], constant.shape
        self.require(2 <= len(shape) <= 4 and 0 not in shape, path, "a weight of two to four dimensions", shape)
        seen = ((found.shape, found.strides), (turned(found.shape), turned(found.strides)))
        with_row = (*shape[:2], 1, *shape[2:]) if len(shape) == 3 else shape
        stored = {(one, without_gaps(one)) for one in (shape, with_row)}
        whole = found.dtype == constant.dtype and not item.offset and not stored.isdisjoint(seen)
        self.require(whole, path, "the whole of a weight without gaps", found)

    def interface(self, bucket: Bucket, entry: EntryPoint, path: str) -> None:
        """The tensors that stand for inputs and outputs are what the entry point promises, in memory they may use."""
        for i, (number, spec) in enumerate(zip(bucket.inputs, entry.inputs)):
            self.promised(bucket, number, spec, f"{path}.inputs[{i}]")
            found = self.program.layouts[bucket.tensors[number].layout]
            plain = found.strides == without_gaps(found.shape)
            self.require(plain, f"{path}.inputs[{i}]", "a tensor without gaps", found.strides)
            homes = (Space.CALLER,) if spec.kind == "mutated" else (Space.INPUT, Space.ARENA)  # ARENA in format 1
            space = bucket.tensors[number].space
            self.require(space in homes, f"{path}.inputs[{i}]", f"memory of the kind {homes[0].name}", space)
        for i, (number, output) in enumerate(zip(bucket.outputs, entry.outputs)):
            self.promised(bucket, number, output, f"{path}.outputs[{i}]")
            self.require(
                bucket.tensors[number].space not in (Space.CONSTANT, Space.PACKED),
                f"{path}.outputs[{i}]",
                "memory that may be written",
            )
        self.input_memory(bucket, entry, path)

    def promised(self, bucket: Bucket, number: int, spec: Input | Output, path: str) -> None:
        found = self.program.layouts[bucket.tensors[number].layout]
        shape = tuple(evaluate(expr, bucket.sizes) for expr in spec.shape)
        self.require(
            found.dtype == spec.dtype and found.shape == shape,
            path,
            f"{spec.dtype}{list(shape)}",
            f"{found.dtype}{list(found.shape)}",
        )

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
                self.require(self.extent(item) <= room.get(item.index, -1), path, "a tensor within its input")

    def copy_place(self, bucket: Bucket, position: int, extent: int, path: str) -> None:
        self.require(len(bucket.input_offsets) == len(bucket.inputs), path, "an offset for each input")
        offset = bucket.input_offsets[position]
        fits = offset >= 0 and not offset % self.program.alignment and offset + extent <= self.program.arena
        self.require(fits, path, "a place within the arena", offset)

    def extent(self, item: Placement) -> int:
        found = self.program.layouts[item.layout]
        return item.offset + reach(found.shape, found.strides) * dtype(found.dtype, self.where).itemsize

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

    def packed(self, bucket: Bucket, path: str) -> None:
        """Packed constants are read as weights of matrix products and convolutions alone."""
        for item in (self.program.instructions[number] for number in bucket.code):
            if read := read_packed(item, bucket):
                op = self.program.ops[item.op].name
                seen = [self.program.layouts[bucket.tensors[number].layout] for number in read]
                legal = is_legal(item, op, read, seen)
                self.require(legal, f"{path}.code", "a packed constant where an op that takes such has its weight", op)

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
        used = {n for item in code for n in (*item.outs, *tensor_numbers((*item.args, *(v for _, v in item.kwargs))))}
        self.require(not mine & (used | set(bucket.outputs)), f"{path}.code", "a list that is no tensor", mine & used)

    def argument(self, value: Arg, bucket: Bucket, path: str) -> None:
        if isinstance(value, tuple):
            for item in value:
                self.argument(item, bucket, path)
        elif isinstance(value, TensorArg):
            self.index(value.index, len(bucket.tensors), path)
        elif isinstance(value, GroupArg):
            self.index(value.axis, len(self.program.mesh), path)
        elif isinstance(value, (HostArg, WorkspaceArg)):
            self.require(False, path, "host arguments by name, not within others", value)
        elif isinstance(value, DTypeArg):
            dtype(value.name, self.where)
        elif isinstance(value, MemoryFormatArg):
            memory_format(value.name, self.where)
        elif isinstance(value, LayoutArg):
            layout(value.name, self.where)
