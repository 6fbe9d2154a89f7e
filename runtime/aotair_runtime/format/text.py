"""A program as stable text, for people and for tests; and the plain tables that reports print."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from ..errors import in_line
from .mesh import cuts_of, mesh_text, parts_of, ranks_of, whole_shape
from .prologue import as_program, follows_from
from .schema import (
    Bucket,
    Constant,
    DeviceArg,
    EntryPoint,
    Form,
    GroupArg,
    HostArg,
    Instruction,
    Joined,
    Placement,
    Program,
    Space,
    State,
    TensorArg,
    WorkspaceArg,
)
from .sizes import describe, shape_text
from .torch_names import dtype


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of plain text: the first column left-aligned, the others right-aligned, a line for each row."""
    return "\n".join(_table_lines(head, rows))


def _table_lines(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    cells = [list(head), *([in_line(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]

    def line(row: list[str]) -> str:
        return "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip()

    return [line(cells[0]), "  ".join("-" * w for w in widths), *map(line, cells[1:])]


def summary(program: Program) -> str:
    """Requirements, entry points, inputs, outputs and buckets, without instructions."""
    need = program.requirements
    lines = [
        f"{program.name}: for {need.device}, torch {need.torch_min} or newer (built with {need.torch_built})",
        f"{len(program.constants)} constants, {_states_text(program)}, arena {program.arena:,} bytes",
    ]
    if program.mesh:
        shared = sum(constant.shard is not None for constant in program.constants)
        lines += [
            f"for {ranks_of(program.mesh)} ranks together ({mesh_text(program.mesh)}), who share {shared} of them out"
        ]
        if program.own_inputs:
            own = mesh_text([program.mesh[number] for number in program.own_inputs])
            lines += [f"along {own} each rank is called with inputs of its own"]
    elif program.beside.meshes:
        lines += ["for 1 rank"]
    if files := [f"{file.name} ({file.nbytes:,} bytes)" for file in program.files if "/" in file.name]:
        lines += [f"travelling along: {', '.join(files)}"]
    for entry in program.entry_points:
        lines += ["", *_entry_lines(program, entry)]
    return "\n".join(map(in_line, lines))


def _states_text(program: Program) -> str:
    """How many states there are, of which dtypes, and what they take; ints of a byte say that a cache is quantised."""
    states = [program.constants[item.constant] for item in program.state]
    if not states:
        return "0 states"
    counts = Counter(constant.dtype for constant in states)
    kinds = ", ".join(kind if len(counts) == 1 else f"{count} {kind}" for kind, count in sorted(counts.items()))
    return f"{len(states)} states ({kinds}; {sum(map(_nbytes, states)):,} bytes)"


def _nbytes(constant: Constant) -> int:
    return math.prod(constant.shape) * dtype(constant.dtype).itemsize


def weights_text(program: Program) -> str:
    """The constants, each with its kind, its bytes and what it follows from; then how derived ones are made."""
    sources, rows = follows_from(program), []
    pieces = {item.name: _pieces_text(item) for item in program.joined}
    for constant in program.constants:
        others = [" = ".join(group) for group in constant.names if group != (constant.name,)]
        others += [pieces[name] for group in constant.names for name in group if name in pieces]
        text = ", ".join(sources.get(constant.name, others))
        what = f"{constant.dtype}{list(constant.shape)}{_share_text(program, constant)}"
        rows.append([constant.name, what, f"{_nbytes(constant):,}", constant.kind or "not recorded", text])
    lines = _table_lines(["tensor", "", "bytes", "kind", "of"], rows)
    for part in program.prologue.parts:
        own = as_program(program, part)
        lines += ["", *_bucket_lines(own, own.entry_points[0], part.bucket)]
    return "\n".join(map(in_line, lines))


def _pieces_text(item: Joined) -> str:
    """In which pieces checkpoints hold it."""
    return ", ".join(item.pieces) + (f" ({{}} from 0 to {item.count - 1})" if item.count else "")


def _share_text(program: Program, constant: Constant) -> str:
    """How ranks share a constant out, if they do."""
    if (shard := constant.shard) is None:
        return ""
    axes = " and ".join(program.mesh[cut.axis].name for cut in cuts_of(shard))
    return f", 1 of {parts_of(shard)} of {list(whole_shape(constant))} along {axes}"


def bucket_text(program: Program, entry: EntryPoint, bucket: Bucket) -> str:
    """The tensors and instructions of one bucket."""
    return "\n".join(map(in_line, _bucket_lines(program, entry, bucket)))


def _entry_lines(program: Program, entry: EntryPoint) -> Iterator[str]:
    yield f"entry point {entry.name}"
    for spec in entry.inputs:
        host = ", a list of the host" if spec.host else ""
        pad = "" if spec.pad is None else f", pad {spec.pad}"
        yield f"  input  {spec.name}: {spec.dtype}{shape_text(entry, spec.shape)} ({spec.kind}{host}{pad})"
    for dim in (dim for dim in entry.dims if dim.least):
        yield f"  dimension {dim.name}: {dim.least} at least"
    for name, value in entry.constants:
        yield f"  constant {name}: {value!r}"
    for number, output in enumerate(entry.outputs):
        own = ", a tensor of its own at each call" if output.clone else ""
        yield f"  output {number}: {output.dtype}{shape_text(entry, output.shape)}{own}"
    rows = []
    for bucket in entry.buckets:
        proof = bucket.proof
        error = "not proved" if proof is None else f"{proof.max_abs_error:.1e}"
        units = "" if proof is None else f"{proof.units:.3g}"
        runs = "" if proof is None else str(len(proof.padding))
        gap = f"{bucket.height / bucket.lower_bound - 1:.2%}" if bucket.lower_bound else "0.00%"
        rows.append([describe(entry, bucket.sizes), len(bucket.code), f"{bucket.height:,}", gap, error, units, runs])
    yield from _table_lines(
        ["bucket", "instructions", "arena bytes", "over bound", "error", "units", "padding runs"], rows
    )
    if any(bucket.proof and bucket.proof.sampled for bucket in entry.buckets):
        yield "  proved by a sample of runs"


def _bucket_lines(program: Program, entry: EntryPoint, bucket: Bucket) -> Iterator[str]:
    yield f"{entry.name} [{describe(entry, bucket.sizes)}] arena {bucket.height}"
    copies = bucket.input_offsets or (-1,) * len(bucket.inputs)
    yield "inputs " + " ".join(
        f"{spec.name}=%{n}" + (f" copied to {offset}" if offset >= 0 else "")
        for spec, n, offset in zip(entry.inputs, bucket.inputs, copies)
    )
    for number, placement in enumerate(bucket.tensors):
        yield f"%{number} = {_placement_text(program, placement)}"
    for number in bucket.code:
        yield _instruction_text(program, program.instructions[number])
    yield "return " + " ".join(f"%{n}" for n in bucket.outputs)


def _placement_text(program: Program, item: Placement) -> str:
    layout = program.layouts[item.layout]
    space = Space(item.space).name.lower()
    tables: dict[int, Sequence[Constant | State]] = {Space.STATE: program.state}
    tables |= dict.fromkeys((Space.CONSTANT, Space.PACKED), program.constants)
    names = tables.get(item.space)
    which = "" if item.space == Space.ARENA else f" {names[item.index].name if names else item.index}"
    return f"{layout.dtype}{list(layout.shape)} strides {list(layout.strides)} in {space}{which} at {item.offset}"


def _instruction_text(program: Program, item: Instruction) -> str:
    stream = f"[stream {item.stream}] " if item.stream else ""
    if item.is_event:
        return f"{stream}{Form(item.form).name.lower()} event {item.args[0]}  # {item.node}"
    args = [_arg_text(arg) for arg in item.args] + [f"{name}={_arg_text(arg)}" for name, arg in item.kwargs]
    outs = ", ".join("_" if n < 0 else f"%{n}" for n in item.outs)
    arrow = {Form.OUT: " => ", Form.COPY: " => copy ", Form.EFFECT: ""}[Form(item.form)]
    return f"{stream}{program.ops[item.op].name}({', '.join(args)}){arrow}{outs}  # {item.node}"


def _arg_text(arg: object) -> str:
    if isinstance(arg, TensorArg):
        return f"%{arg.index}"
    if isinstance(arg, tuple):
        return "[" + ", ".join(map(_arg_text, arg)) + "]"
    if isinstance(arg, DeviceArg):
        return "device"
    if isinstance(arg, HostArg):
        return f"the list of input {arg.input}"
    if isinstance(arg, WorkspaceArg):
        return f"workspace of op {arg.op}"
    if isinstance(arg, GroupArg):
        return f"the ranks along axis {arg.axis}"
    return arg.name if hasattr(arg, "name") else repr(arg)
