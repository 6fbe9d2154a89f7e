"""What `program.msgpack` holds, as frozen dataclasses: the only thing that builder and runtime share.

On disk each dataclass is an array of its fields in order (`codec.py`). A new field goes last and has a default, so
that older artifacts still load; `FORMAT.md` says the same in prose and keeps the history.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

MAGIC = "aotair"
FORMAT, FORMAT_OF_SEVERAL = 6, 7  # of one program, and of programs for several meshes
READS = (1, 2, 3, 4, 5, 6, 7)
PART = 64 << 20  # bytes of a file that have a digest of their own
SIGNATURE_FILE = "model.sig"  # of all other files, where somebody has signed them
DEBUG_FILE = "debug.msgpack"  # where instructions come from: no program lists it, and no load reads it
PROGRAM_FILE, WEIGHTS_FILE, GOLDEN_FILE, REPORT_FILE = (
    "program.msgpack",
    "weights.safetensors",
    "golden.safetensors",
    "report.html",
)
REPORT_FOLDER = "report"  # the pages that the report leads to, which the runtime ignores as it does the report
COMPANIONS = "files"  # the folder of data files that travel with the artifact


class Space(IntEnum):
    """Where a tensor's bytes lie."""

    ARENA = 0  # planned memory, shared by all buckets
    CONSTANT = 1  # parameters, buffers that never change, lifted constants: mapped from the weights file
    STATE = 2  # buffers that the model mutates: owned by the model, shared by all buckets
    CALLER = 3  # mutated inputs: memory of the caller, used in place
    INPUT = 4  # user inputs: their copies in planned memory, or the caller's own tensors where nothing is copied
    PACKED = 5  # a constant as the kernel that reads it wants it: made at load, where the device has such a form


READ_ONLY = (Space.CONSTANT, Space.INPUT, Space.PACKED)  # no instruction may write there


class Form(IntEnum):
    """How an instruction hands over its results."""

    OUT = 0  # the op writes into the tensors it is given as its out arguments
    COPY = 1  # the op returns fresh tensors, which are copied into the planned ones
    EFFECT = 2  # the op writes into its arguments and its results are not used
    RECORD = 3  # no op: the event numbered by the only argument is recorded on the instruction's stream
    WAIT = 4  # no op: the instruction's stream waits for that event


@dataclass(frozen=True)
class TensorArg:
    """A tensor of the bucket, by its number."""

    index: int


@dataclass(frozen=True)
class DTypeArg:
    name: str


@dataclass(frozen=True)
class MemoryFormatArg:
    name: str


@dataclass(frozen=True)
class LayoutArg:
    name: str


@dataclass(frozen=True)
class DeviceArg:
    """The device that the model is loaded on."""


@dataclass(frozen=True)
class HostArg:
    """The list of ints that a call brings for the input of that position: a host argument, replaced at each replay."""

    input: int


@dataclass(frozen=True)
class WorkspaceArg:
    """What the op of that number returns for the instruction's arguments: only the device knows how much it is."""

    op: int


@dataclass(frozen=True)
class GroupArg:
    """The ranks that differ along the mesh's axis of that number alone, this one among them: whom a collective is
    with."""

    axis: int


Scalar: TypeAlias = bool | int | float | str | None
Reference: TypeAlias = (
    TensorArg | DTypeArg | MemoryFormatArg | LayoutArg | DeviceArg | HostArg | WorkspaceArg | GroupArg
)
Operator: TypeAlias = Literal["+", "*", "//", "%", "min", "max"]
EXPR_OPERATORS: tuple[Operator, ...] = ("+", "*", "//", "%", "min", "max")
if TYPE_CHECKING:
    # One argument of an instruction: a plain value, a dataclass from above, or a tuple of arguments.
    Arg: TypeAlias = Annotated["Scalar | Reference | tuple[Arg, ...]", "arg"]
    # A size in terms of the dynamic dimensions: an int, ("dim", i), or (operator, operand, operand …).
    Expr: TypeAlias = Annotated["int | tuple[Literal['dim'], int] | tuple[Operator, Expr, *tuple[Expr, ...]]", "expr"]
    # The structure of what a call returns: ("tensor", i), ("const", value), ("tuple", …), ("list", …),
    # ("dict", (key, …), child, …), ("record", type name, (key, …), child, …) or ("named", …) likewise: a named tuple.
    Tree: TypeAlias = Annotated[
        "tuple[Literal['tensor'], int] | tuple[Literal['const'], Scalar] "
        "| tuple[Literal['tuple', 'list'], *tuple[Tree, ...]] "
        "| tuple[Literal['dict'], tuple[str | int, ...], *tuple[Tree, ...]] "
        "| tuple[Literal['record', 'named'], str, tuple[str, ...], *tuple[Tree, ...]]",
        "tree",
    ]
else:  # aliases that name themselves cannot be evaluated: the codec goes by the mark, and checks the same
    Arg, Expr, Tree = (Annotated[object, mark] for mark in ("arg", "expr", "tree"))


@dataclass(frozen=True)
class Layout:
    """dtype by torch's name; shape and strides in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """One tensor: `offset` bytes into the arena, or into the constant, state or input number `index`."""

    space: int
    index: int
    offset: int
    layout: int


@dataclass(frozen=True)
class Op:
    """An op of the dispatcher, `namespace::name.overload`, and the schema it had at build time."""

    name: str
    schema: str


@dataclass(frozen=True)
class Instruction:
    """One call. `outs` are the tensors that receive the results (-1: not wanted); `node` is its name in the graph.

    `stream` 0 is the one that the bucket is captured on; an event (`Form.RECORD`, `Form.WAIT`) has the op -1.
    """

    op: int
    form: int
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    outs: tuple[int, ...]
    node: str
    stream: int = 0

    @property
    def is_event(self) -> bool:
        """Whether it records an event or waits for one, and calls no op."""
        return self.form in (Form.RECORD, Form.WAIT)


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh, and how many ranks it has."""

    name: str
    size: int


@dataclass(frozen=True)
class Cut:
    """One way to cut a tensor: its dimension `dim` is `blocks` blocks one after the other, each cut into `parts` equal
    parts. The ranks along the mesh's axis of that number take them in order; where these are more than parts,
    neighbours take the same."""

    axis: int
    dim: int
    parts: int
    blocks: int = 1


@dataclass(frozen=True)
class Shard(Cut):
    """How a rank's part lies in a whole tensor, as the weights file and a checkpoint have it: cut once, or each part
    cut `again`, along another axis."""

    again: Cut | None = None


@dataclass(frozen=True)
class Constant:
    """A tensor of the weights file, with the (first) name that the model gives it.

    `kind`: "weight" (a checkpoint of the model has it), "fixed" (none has: buffers that are not persistent, constants
    of the code), "derived" (a part of the prologue makes it of others), "" (not recorded). `names`:
    the model's tensors that it stands for, which were equal at build time, each with all the names that are tied to it.
    `shape` is what a rank has; where `shard` says so, the part of a whole tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str = ""
    names: tuple[tuple[str, ...], ...] = ()
    shard: Shard | None = None


@dataclass(frozen=True)
class Joined:
    """A tensor of the model, by one of its names, that checkpoints hold in pieces, one after the other along the first
    dimension. With a `count` each piece's name has one `{}`, and there are so many such tensors, from number 0 on,
    stacked: the experts of a layer."""

    name: str
    pieces: tuple[str, ...]
    count: int = 0


@dataclass(frozen=True)
class State:
    """A buffer that the model mutates: its name, and the constant that holds its first value."""

    name: str
    constant: int


@dataclass(frozen=True)
class Dim:
    """A dynamic dimension; a paddable one may be smaller in a call than in the bucket that serves it, but not smaller
    than `least`."""

    name: str
    paddable: bool
    least: int = 0


@dataclass(frozen=True)
class Input:
    """A tensor argument of a call. `kind`: "user" (copied in) or "mutated" (the caller's, used in place).

    `pad`: None, not paddable; "any", whatever lies there does no harm (proved); a number, the value to fill with.
    `value_range`: the legal values (low inclusive, high exclusive) that the build used, or None. A `host` input is a
    list of ints; instructions take it as such, or all as a tensor.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[Expr, ...]
    pad: Annotated[bool | int | float | Literal["any"] | None, "arg"]
    value_range: tuple[float, ...] | None
    host: bool = False


@dataclass(frozen=True)
class Output:
    """A tensor that a call returns, with its shape in terms of the sizes of the call. `clone`: each call gives a tensor
    of its own, which no later one overwrites."""

    dtype: str
    shape: tuple[Expr, ...]
    clone: bool = False


@dataclass(frozen=True)
class PaddingProof:
    """One run of a bucket with `sizes` real and the rest filled with `poison`, against the original model: the largest
    error, and the largest in units in the last place of its row's greatest number."""

    sizes: tuple[int, ...]
    poison: str
    max_abs_error: float
    identical: bool
    units: float = 0.0


@dataclass(frozen=True)
class Proof:
    """What the build showed for one bucket: the largest error against the original model, padding runs, and the largest
    error in units in the last place of its row's greatest number. `sampled`: a recipe asked for fewer runs."""

    max_abs_error: float
    padding: tuple[PaddingProof, ...]
    units: float = 0.0
    sampled: bool = False


@dataclass(frozen=True)
class Fresh:
    """What calls of one op allocate by themselves: on the stream number `stream`, `calls` instructions, each at most
    `nbytes` at a time, until its results are copied to their places."""

    op: int
    stream: int
    nbytes: int
    calls: int


@dataclass(frozen=True)
class Bucket:
    """The program of one bucket: `sizes` by dimension, `tensors`, and `code` as numbers of shared instructions.

    `inputs` and `outputs` are tensor numbers. `height` and `lower_bound` (bytes) are those of the bucket's own plan.
    `input_offsets` is where the copies of inputs lie in the arena (-1: a mutated input, never copied); `streams` and
    `events` are how many the bucket's capture takes, `priorities` those of the streams where not all are 0 (lower is
    more urgent). `fresh` lists what its instructions allocate beside the arena. `updated` is how many instructions have
    host arguments, which a replay replaces.
    """

    sizes: tuple[int, ...]
    tensors: tuple[Placement, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    code: tuple[int, ...]
    height: int
    lower_bound: int
    proof: Proof | None
    input_offsets: tuple[int, ...] = ()
    streams: int = 1
    events: int = 0
    priorities: tuple[int, ...] = ()
    fresh: tuple[Fresh, ...] = ()
    updated: int = 0


@dataclass(frozen=True)
class EntryPoint:
    """`constants`: arguments that are no tensors, by name, with the values that the model was built with."""

    name: str
    dims: tuple[Dim, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    structure: Tree
    buckets: tuple[Bucket, ...]
    capture_order: tuple[int, ...]
    constants: tuple[tuple[str, Annotated[Scalar, "arg"]], ...] = ()


@dataclass(frozen=True)
class Requirements:
    """What a node must have: torch (`torch_min` at least; `torch_built` is the builder's) and the device kind.

    `vendor_min` is the least version of the vendor's package (torch_npu), `soc` how the device's name begins; both are
    empty where the artifact does not ask for any. The memory that the model may take, if not any: `memory_budget`
    bytes, or `memory_share` of the device's.
    """

    torch_min: str
    torch_built: str
    device: str
    vendor_min: str = ""
    soc: str = ""
    memory_budget: int = 0
    memory_share: float = 0.0


@dataclass(frozen=True)
class Options:
    """The recipe's choices for the runtime, under TorchAir's names; `load` may override them."""

    clone_input: bool
    enable_output_clone: bool
    disable_mempool_reuse_in_same_fx: bool = False


@dataclass(frozen=True)
class Tolerance:
    """How far `verify` lets a golden output be from the replayed one: `atol + rtol * |golden|`, and `scale` times the
    greatest number of its row."""

    atol: float
    rtol: float
    scale: float = 0.0


@dataclass(frozen=True)
class File:
    """Another file of the artifact: its name, length in bytes and SHA-256 (hexadecimal); of one that is longer than
    `PART`, also that of each part of so many bytes, which are checked instead, side by side."""

    name: str
    nbytes: int
    sha256: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reserve:
    """Bytes that no plan can know and the recipe states: `workspace` for kernels, for each stream; `device` for what
    the device and its graphs take; `buffer` for each of the two buffers of a communicator of NPUs, 0 where the node's
    environment says how large they are."""

    workspace: int = 0
    device: int = 0
    buffer: int = 0


@dataclass(frozen=True)
class Origin:
    """What a program follows from, so that another build can tell whether it would make the same: the versions of torch
    and aotair, and digests (SHA-256, hexadecimal) of the recipe without its name and weights, of the user's own passes
    and rules, and of the exported graph. All empty: not recorded."""

    versions: str = ""
    recipe: str = ""
    code: str = ""
    graph: str = ""


@dataclass(frozen=True)
class Part:
    """A program of the host that makes constants of others: `reads` and `makes` are their numbers, where those of
    `Prologue.sources` follow those of `Program.constants`. In its bucket they are the constants, and the inputs."""

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    bucket: Bucket


@dataclass(frozen=True)
class Prologue:
    """How the constants of the kind "derived" follow from a checkpoint. `sources`: tensors of the checkpoint that the
    parts read and no bucket does; the artifact does not store them. `arena`: the bytes that the largest part needs."""

    sources: tuple[Constant, ...] = ()
    parts: tuple[Part, ...] = ()
    arena: int = 0


@dataclass(frozen=True)
class Stored:
    """A tensor of the weights file, whole."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Pieces:
    """The constant of that number lies in the weights file as the tensors `names`, one behind the other along its first
    dimension, in as many parts as the ranks cut that: the layers of several stages."""

    constant: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Beside:
    """What an artifact for several meshes holds beside one of its programs: the `meshes` of all, in their order, of
    which this program's is that of `number`; all tensors of the weights file; and which constants of this program lie
    there in `pieces`. Of an artifact for one mesh: nothing."""

    meshes: tuple[tuple[Axis, ...], ...] = ()
    number: int = 0
    stored: tuple[Stored, ...] = ()
    pieces: tuple[Pieces, ...] = ()


NOT_WRITTEN = {"written": False}  # of a field that whoever reads the file fills in


@dataclass(frozen=True)
class Program:
    """`unread`: names that a checkpoint of the model has and no instruction reads. `quantisation`: a digest of what the
    checkpoint's folder said of how its weights are quantised (`artifact.quantisation`); empty: nothing. `mesh`: the
    axes of the ranks that run the program together, the last one varying fastest from rank to rank; none: one rank.
    `joined`: which tensors checkpoints may hold in pieces. `own_inputs`: the numbers of the axes along which ranks are
    called with inputs of their own, and of their own sizes. `beside`: what else the artifact holds; it is not among the
    program's bytes."""

    name: str
    requirements: Requirements
    options: Options
    tolerance: Tolerance
    constants: tuple[Constant, ...]
    state: tuple[State, ...]
    ops: tuple[Op, ...]
    layouts: tuple[Layout, ...]
    instructions: tuple[Instruction, ...]
    entry_points: tuple[EntryPoint, ...]
    arena: int
    alignment: int
    files: tuple[File, ...]
    reserve: Reserve = Reserve()
    unread: tuple[str, ...] = ()
    origin: Origin = Origin()
    prologue: Prologue = Prologue()
    quantisation: str = ""
    mesh: tuple[Axis, ...] = ()
    joined: tuple[Joined, ...] = ()
    own_inputs: tuple[int, ...] = ()
    beside: Beside = field(default=Beside(), metadata=NOT_WRITTEN)


@dataclass(frozen=True)
class OneOf:
    """One of the programs of an artifact: the ranks that it is for, the file of those golden tensors that not all
    programs have (or none), which of its constants lie in pieces, and the program itself, as msgpack, without files."""

    mesh: tuple[Axis, ...]
    golden: tuple[File, ...]
    pieces: tuple[Pieces, ...]
    body: bytes


@dataclass(frozen=True)
class Several:
    """What `program.msgpack` holds of an artifact for several meshes: all tensors of the weights file, whole, which the
    constants of the programs name; the files that all programs share; and the programs, each for another mesh."""

    name: str
    stored: tuple[Stored, ...]
    files: tuple[File, ...]
    programs: tuple[OneOf, ...]
