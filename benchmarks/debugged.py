"""Plants faults, one at a time, and has the debugger look for each: does it name what was planted?

Passes that change what graphs compute (those that the proof is tested with, see tests/planted.py), weights of an
artifact that are not the model's, instructions that are not those of a build, tensors that lie elsewhere, waits that
are dropped, kernels that round otherwise, and lists of lengths that are not updated. A fault is named where the first
finding says what kind it is of, and the pass, the weight, or an instruction that was changed. A finding that says that
it is certain, and names something else, counts as wrong.
"""

import contextlib
import functools
import itertools
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from aotair.debugger.debug import Begun, debug_recipe
from aotair.debugger.finding import Debugged
from aotair.debugger.ladder import Form, copied
from aotair.debugger.programs import code_of, listed
from aotair.debugger.search import Asked
from aotair.errors import InternalError
from aotair.graph.fake import recompute
from aotair.pack import lay_down
from aotair.passes import pipeline
from aotair.passes.observer import Observer
from aotair.program import Built, build_program
from aotair.prove.prove import on_host
from aotair_runtime.artifact.open import Artifact
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.devices.host_call import HostCall
from aotair_runtime.errors import AotairError
from aotair_runtime.format.prologue import follows_from
from aotair_runtime.format.schema import Bucket, EntryPoint, Input, Instruction, Op, Program, Space, TensorArg
from aotair_runtime.format.schema import Form as Handed
from aotair_runtime.format.stream_rules import stream_fault

from .common import Row, options, report

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import planted

_GRAPHS = ("minilm", "encoder", "counter", "llama", "deepseek_v3")
_ORDERS = 300  # legal orders of a program's calls that are tried to see whether a dropped wait matters
_PLANTED = "planted"
_ORDERED = (
    "aten::sub",
    "aten::bmm",
    "aten::where",
    "aten::div",
    "aten::le",
    "aten::lt",
)  # whose arguments have an order


@dataclass(frozen=True)
class Outcome:
    """What the debugger said of a fault."""

    kind: str
    what: str
    named: bool
    certain: bool
    said: str


@functools.cache
def model(name: str) -> planted.Model:
    """A model and its exported graphs, before any pass."""
    if name == "ascend_decode":
        planted._CHANGES[name] = ("buckets={batch: [4]}",)
    return planted.Model(name)


def begun(of: planted.Model, plant: "Callable[[planted.Copy], None] | None" = None) -> tuple[Begun, set[str]]:
    """A build as far as its passes, with a pass that plants something; the names of the calls that it changed."""
    made = planted.Copy(of.exported)
    before = [copied(module.graph) for module in made.modules]
    if plant is not None:
        plant(made)
    forms, changed = {}, set[str]()
    for number, (module, was) in enumerate(zip(made.modules, before)):
        recompute(module.graph)
        forms[number] = [Form("export", was), Form(_PLANTED, copied(module.graph))]
        changed |= differing(was, module.graph)
        seen = forms[number]
        observer = Observer(
            of.job.target, listener=lambda stage, graph, _, seen=seen: seen.append(Form(stage, copied(graph)))
        )
        pipeline.apply(module, of.job.config, observer, None, of.job.rules)
    return Begun(of.job, of.original, made.exported(), forms), changed


def kept(seen: list[Form], stage: str, graph: torch.fx.Graph, label: str) -> None:
    seen.append(Form(stage, copied(graph)))


def differing(before: torch.fx.Graph, after: torch.fx.Graph) -> set[str]:
    one, other = ({node.name: f"{node.target}{node.args}{node.kwargs}" for node in g.nodes} for g in (before, after))
    return {name for name in (*one, *other) if one.get(name) != other.get(name)}


def built(of: planted.Model, ready: Begun) -> Built:
    return build_program(ready.exported, of.job, lambda *_: None)


def first_words(found: Debugged) -> set[str]:
    """The calls that the first finding names."""
    return {call.partition(" ")[0] for call in found.findings[0].calls} if found.findings else set()


def outcome(
    what: str, found: Sequence[Debugged], kinds: set[str], names: set[str] | None, by: set[str] | None
) -> Outcome:
    """Whether the first finding is of one of these kinds, and names one of these calls, or something by its name."""
    last = found[-1]
    if not last.findings:
        return Outcome("|".join(sorted(kinds)), what, False, False, "nothing is wrong")
    first = last.findings[0]
    right = first.kind in kinds
    right &= names is None or bool(names & first_words(last))
    right &= by is None or first.by in by
    return Outcome("|".join(sorted(kinds)), what, right, first.certain, f"{first.kind}: {first.what}"[:150])


# ---- passes and weights ----------------------------------------------------------------------------------------------


def in_passes(only: str | None) -> Iterator[Outcome]:
    for fault, _ in faults(only, in_weights=False):
        ready, changed = begun(model(fault.model), fault.plant)
        found = debug_recipe(ready, Asked(), None, lambda rung: None)
        yield outcome(str(fault), found, {"pass"}, changed, {_PLANTED})


def in_weights(only: str | None) -> Iterator[Outcome]:
    for fault, made in faults(only, in_weights=True):
        of = model(fault.model)
        (name,) = made._weights
        for module in made.modules:
            pipeline.apply(module, of.job.config, Observer(of.job.target), None, of.job.rules)
        with laid_down(build_program(made.exported(), of.job, lambda *_: None)) as artifact:
            found = debug_recipe(begun(of)[0], Asked(), artifact, lambda rung: None)
            ways = {name} | {derived for derived, names in follows_from(artifact.program).items() if name in names}
        yield outcome(str(fault), found, {"weights"}, None, ways)


def faults(only: str | None, in_weights: bool) -> Iterator[tuple[planted.Fault, planted.Copy]]:
    """Those that are planted in weights, or those that are not, each with what it makes of the graphs."""
    for fault in planted.FAULTS:
        if fault.model not in _GRAPHS or (only and only not in str(fault)):
            continue
        made = planted.Copy(model(fault.model).exported)
        fault.plant(made)
        if bool(made._weights) == in_weights:
            yield fault, made


@contextlib.contextmanager
def laid_down(made: Built) -> Iterator[Artifact]:
    with tempfile.TemporaryDirectory() as folder:
        yield lay_down(made, Path(folder))


# ---- programs --------------------------------------------------------------------------------------------------------


Plant = Callable[[Program, Bucket, int], "Program | None"]


def in_programs(only: str | None) -> Iterator[Outcome]:
    """An instruction of an entry point's first bucket that is not that of a build."""
    for name, entry in (("minilm", 0), ("llama", 0), ("llama", 1), ("deepseek_v3", 0), ("encoder", 0)):
        of = model(name)
        ready = begun(of)[0]
        right = built(of, ready)
        for what, change, kinds in CHANGES:
            label = f"{name} {of.job.entries[entry].entry}: {what}"
            made = None if only and only not in label else planted_in(right, entry, change, random.Random(label))
            if made is None:
                continue
            program, node = made
            with laid_down(replace(right, program=program)) as artifact:
                asked = Asked(of.job.entries[entry].entry)
                found = debug_recipe(ready, asked, artifact, lambda rung: None)
            yield outcome(label, found, kinds, {node}, None)


def planted_in(right: Built, entry: int, change: Plant, chance: random.Random) -> "tuple[Program, str] | None":
    """The first of the instructions, in a random order, that can be changed so that a load takes the program and a call
    gives other numbers; and its name."""
    program = right.program
    bucket = program.entry_points[entry].buckets[0]
    numbers = [number for number in bucket.code if not program.instructions[number].is_event]
    chance.shuffle(numbers)
    wanted = answers(right, program, entry)
    for number in numbers:
        made = change(program, bucket, number)
        if made is None or (got := answers(right, made, entry)) is None:
            continue
        if not all(torch.allclose(one, other, 1e-3, 1e-3, equal_nan=True) for one, other in zip(got, wanted or ())):
            return made, program.instructions[number].node
    return None


def answers(right: Built, program: Program, entry: int) -> list[torch.Tensor] | None:
    """What a program answers to some inputs at the sizes of the entry point's first bucket; None where a load refuses
    it."""
    spec = program.entry_points[entry]
    torch.manual_seed(0)
    try:
        with laid_down(replace(right, program=program)) as artifact, on_host(artifact, Allowed()) as loaded:
            return [
                one.clone() for one in loaded.entry_points[spec.name].flat([some(spec, one) for one in spec.inputs])
            ]
    except (AotairError, InternalError):
        return None


def some(spec: EntryPoint, item: Input) -> torch.Tensor:
    """Numbers that any model takes: small ones."""
    sizes = spec.buckets[0].sizes
    shape = [sizes[size[1]] if isinstance(size, tuple) else size for size in item.shape]
    kind = getattr(torch, item.dtype)
    return torch.rand(shape).to(kind) if kind.is_floating_point else torch.ones(shape, dtype=kind)


def with_instruction(program: Program, number: int, item: Instruction) -> Program:
    items = list(program.instructions)
    items[number] = item
    return replace(program, instructions=tuple(items))


def another_number(program: Program, bucket: Bucket, number: int) -> Program | None:
    """A number among the arguments, half as large again."""
    item = program.instructions[number]
    for place, value in enumerate(item.args):
        if isinstance(value, float) and abs(value) > 1e-3:
            args = (*item.args[:place], value * 1.5, *item.args[place + 1 :])
            return with_instruction(program, number, replace(item, args=args))
    return None


def another_op(program: Program, bucket: Bucket, number: int) -> Program | None:
    """A sum where a difference was, and so on."""
    item = program.instructions[number]
    name = program.ops[item.op].name
    other = {"aten::add.out": "aten::sub.out", "aten::mul.out": "aten::add.out", "aten::silu.out": "aten::relu.out"}
    if name not in other:
        return None
    wanted = torch._C._get_schema(*other[name].split("."))
    args = item.args
    if len(wanted.arguments) - 1 < len(args):
        return None
    ops = (*program.ops, Op(other[name], str(wanted)))
    return with_instruction(replace(program, ops=ops), number, replace(item, op=len(ops) - 1))


def swapped(program: Program, bucket: Bucket, number: int) -> Program | None:
    """Two arguments of one layout in each other's place, where that matters."""
    item = program.instructions[number]
    if program.ops[item.op].name.partition(".")[0] not in (
        "aten::sub",
        "aten::bmm",
        "aten::where",
        "aten::cat",
        "aten::div",
    ):
        return None
    places = [n for n, arg in enumerate(item.args) if isinstance(arg, TensorArg)]
    for one, other in itertools.pairwise(places):
        mine, theirs = item.args[one].index, item.args[other].index
        if mine != theirs and bucket.tensors[mine].layout == bucket.tensors[theirs].layout:
            args = list(item.args)
            args[one], args[other] = args[other], args[one]
            return with_instruction(program, number, replace(item, args=tuple(args)))
    return None


def another_argument(program: Program, bucket: Bucket, number: int) -> Program | None:
    """A tensor of the same layout instead of an argument."""
    item = program.instructions[number]
    for place, arg in enumerate(item.args):
        if not isinstance(arg, TensorArg) or bucket.tensors[arg.index].space != Space.ARENA:
            continue
        for other, there in enumerate(bucket.tensors):
            if there.layout == bucket.tensors[arg.index].layout and there.space == Space.CONSTANT:
                args = (*item.args[:place], TensorArg(other), *item.args[place + 1 :])
                return with_instruction(program, number, replace(item, args=args))
    return None


def moved(program: Program, bucket: Bucket, number: int) -> Program | None:
    """A result that is written 64 bytes lower than those who read it think."""
    item = program.instructions[number]
    if item.form != Handed.OUT or len(item.outs) != 1:
        return None
    place = bucket.tensors[item.outs[0]]
    if place.space != Space.ARENA or place.offset < 64:
        return None
    tensors = (*bucket.tensors, replace(place, offset=place.offset - 64))
    bad = replace(bucket, tensors=tensors)
    made = with_instruction(program, number, replace(item, outs=(len(tensors) - 1,)))
    return with_bucket(made, bucket, bad)


def another_row(program: Program, bucket: Bucket, number: int) -> Program | None:
    """What lies in a state is read or written a row too far."""
    item = program.instructions[number]
    for place, arg in enumerate(item.args):
        if not isinstance(arg, TensorArg) or bucket.tensors[arg.index].space != Space.STATE:
            continue
        there = bucket.tensors[arg.index]
        layout = program.layouts[there.layout]
        step = layout.strides[0] * getattr(torch, layout.dtype).itemsize
        shorter = replace(layout, shape=(layout.shape[0] - 1, *layout.shape[1:]))
        layouts = (*program.layouts, shorter)
        tensors = (*bucket.tensors, replace(there, offset=there.offset + step, layout=len(layouts) - 1))
        args = (*item.args[:place], TensorArg(len(tensors) - 1), *item.args[place + 1 :])
        made = with_instruction(replace(program, layouts=layouts), number, replace(item, args=args))
        return with_bucket(made, bucket, replace(bucket, tensors=tensors))
    return None


def with_bucket(program: Program, old: Bucket, new: Bucket) -> Program:
    entries = [
        replace(entry, buckets=tuple(new if bucket is old else bucket for bucket in entry.buckets))
        for entry in program.entry_points
    ]
    return replace(program, entry_points=tuple(entries))


CHANGES: Sequence[tuple[str, Plant, set[str]]] = (
    ("another number", another_number, {"instruction"}),
    ("another op", another_op, {"instruction"}),
    ("arguments swapped", swapped, {"instruction", "memory"}),
    ("another argument", another_argument, {"instruction", "memory"}),
    ("a result elsewhere", moved, {"instruction", "memory"}),
    ("a row of the cache too far", another_row, {"instruction", "memory"}),
)


# ---- kernels ---------------------------------------------------------------------------------------------------------


aten = torch.ops.aten
ROUNDED = {  # by model: kernels that write where they are told, each with the op that it is a form of
    "minilm": {
        "aten::sum.IntList_out": aten.sum.dim_IntList,
        "aten::linalg_vector_norm.out": aten.linalg_vector_norm.default,
    },
    "llama": {
        "aten::mul.out": aten.mul.Tensor,
        "aten::mean.out": aten.mean.dim,
        "aten::cos.out": aten.cos.default,
        "aten::pow.Tensor_Scalar_out": aten.pow.Tensor_Scalar,
    },
    "deepseek_v3": {"aten::silu.out": aten.silu.default, "aten::sub.out": aten.sub.Tensor},
}


def in_kernels(only: str | None) -> Iterator[Outcome]:
    """Kernels that round their results to bfloat16, as a device's may."""
    for name, ops in ROUNDED.items():
        of = model(name)
        ready = begun(of)[0]
        program = built(of, ready).program
        for op, plain in ops.items():
            if op not in [one.name for one in program.ops] or (only and only not in f"{name}: {op}"):
                continue
            with rounding(op, plain):
                found = debug_recipe(ready, Asked(), None, lambda rung: None)
            yield outcome(f"{name}: {op} rounds to bfloat16", found, {"kernel"}, None, {op})


@contextlib.contextmanager
def rounding(name: str, plain: torch._ops.OpOverload) -> Iterator[None]:
    """The kernel of an out variant on the CPU, rounded; `plain`, which has no place for its result, is as it was."""
    space, _, rest = name.partition("::")

    def run(*args, **kwargs):
        outs = [kwargs.pop(key) for key in list(kwargs) if key.startswith("out")]
        found = plain(*args, **kwargs)
        for out, one in zip(outs, found if isinstance(found, tuple) else (found,)):
            out.copy_(one.bfloat16().to(one.dtype) if one.dtype.is_floating_point else one)
        return outs[0] if len(outs) == 1 else tuple(outs)

    library = torch.library.Library(space, "IMPL")
    library.impl(rest, run, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


# ---- streams and lists -----------------------------------------------------------------------------------------------


def dropped_waits(only: str | None) -> Iterator[Outcome]:
    for name in ("streams", "branches"):
        of = model(name)
        ready = begun(of)[0]
        right = built(of, ready)
        bucket = right.program.entry_points[0].buckets[0]
        waits = [n for n, number in enumerate(bucket.code) if right.program.instructions[number].form == Handed.WAIT]
        for place in waits:
            label = f"{name}: the wait at {place} dropped"
            bad = replace(bucket, code=bucket.code[:place] + bucket.code[place + 1 :])
            program = with_bucket(right.program, bucket, bad)
            if (only and only not in label) or not is_legal(program) or not matters(right, program):
                continue
            stream = right.program.instructions[bucket.code[place]].stream
            after = [right.program.instructions[n] for n in bucket.code[place + 1 :]]
            waiting = {item.node for item in after if item.stream == stream and not item.is_event}
            with laid_down(replace(right, program=program)) as artifact:
                found = debug_recipe(ready, Asked(), artifact, lambda rung: None)
            yield outcome(label, found, {"wait"}, waiting, None)


def is_legal(program: Program) -> bool:
    """Whether a load takes the streams: what it refuses needs no debugger."""
    bucket = program.entry_points[0].buckets[0]
    return not stream_fault([program.instructions[n] for n in bucket.code], bucket.streams, bucket.events)


def matters(right: Built, program: Program) -> bool:
    """Whether a legal order of the calls gives other numbers."""
    bucket, chance = program.entry_points[0].buckets[0], random.Random(0)
    wanted = None
    for turn in range(_ORDERS):
        code = legal_order(program, bucket, chance) if turn else bucket.code
        calls = tuple(number for number in code if not program.instructions[number].is_event)
        got = answers(right, in_one_stream(with_bucket(program, bucket, replace(bucket, code=calls))), 0)
        wanted = wanted or got
        if got is not None and wanted is not None and not all(map(torch.equal, got, wanted)):
            return True
    return False


def legal_order(program: Program, bucket: Bucket, chance: random.Random) -> tuple[int, ...]:
    """The calls as streams may run them: each stream in order, a wait after its event."""
    queues: dict[int, list[int]] = {}
    for number in bucket.code:
        queues.setdefault(program.instructions[number].stream, []).append(number)
    recorded: set[object] = set()
    order: list[int] = []
    while any(queues.values()):
        ready = []
        for stream, queue in queues.items():
            if queue:
                item = program.instructions[queue[0]]
                if item.form != Handed.WAIT or item.args[0] in recorded:
                    ready.append(stream)
        number = queues[chance.choice(ready)].pop(0)
        item = program.instructions[number]
        if item.form == Handed.RECORD:
            recorded.add(item.args[0])
        order.append(number)
    return tuple(order)


def in_one_stream(program: Program) -> Program:
    items = tuple(replace(item, stream=0) for item in program.instructions)
    entries = [
        replace(e, buckets=tuple(replace(b, streams=1, events=0, priorities=()) for b in e.buckets))
        for e in program.entry_points
    ]
    return replace(program, instructions=items, entry_points=tuple(entries))


def stale_lists(only: str | None) -> Iterator[Outcome]:
    """A captured graph of which one call keeps the list that it was captured with."""
    of = model("ascend_decode")
    ready = begun(of)[0]
    right = built(of, ready)
    with laid_down(right) as artifact:
        nodes = listed(code_of(artifact, "forward", right.program.entry_points[0].buckets[0].sizes))
    for node in nodes:
        if only and only not in f"ascend_decode: {node}":
            continue
        with stale(node):
            found = debug_recipe(ready, Asked(), None, lambda rung: None)
        yield outcome(f"ascend_decode: the list of {node} is not updated", found, {"list"}, {node}, None)


@contextlib.contextmanager
def stale(node: str) -> Iterator[None]:
    """The third list that a call of that name gets, and those after, are lost."""
    own, counts = HostCall.set, dict[int, tuple[int, HostCall]]()

    def lose(self: HostCall, lists: Sequence[list[int]]) -> None:
        count = counts.get(id(self), (0, self))[0] + 1
        counts[id(self)] = (count, self)
        if self.node != node or count < 3:
            own(self, lists)

    HostCall.set = lose  # type: ignore[method-assign]
    try:
        yield
    finally:
        HostCall.set = own  # type: ignore[method-assign]


# ---- all -------------------------------------------------------------------------------------------------------------


KINDS = {
    "passes": in_passes,
    "weights": in_weights,
    "programs": in_programs,
    "kernels": in_kernels,
    "waits": dropped_waits,
    "lists": stale_lists,
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--kind", choices=list(KINDS), help="plant faults of this kind alone")
    parser.add_argument("--only", help="plant those whose name has this in it")
    given = parser.parse_args()
    found: list[Outcome] = []
    for kind, plant in KINDS.items():
        if given.kind in (None, kind):
            for one in plant(given.only):
                found.append(one)
                print(f"{'named ' if one.named else 'MISSED'} {one.what}: {one.said}", flush=True)
    wrong = sum(one.certain and not one.named for one in found)
    share = round(57 / 60 * len(found))
    rows = [
        Row("planted faults that are named", share, sum(one.named for one in found), f"of {len(found)}", at_least=True),
        Row("named something else with certainty", 0, wrong, f"of {len(found)}"),
    ]
    report(rows, given.json, faults=[vars(one) for one in found])


if __name__ == "__main__":
    main()
