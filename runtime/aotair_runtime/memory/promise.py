"""How much memory an artifact takes: worked out from its program alone, before anything is allocated."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from ..devices.allocators import ALLOCATORS, Allocator
from ..errors import MalformedError, MemoryBudgetError
from ..format.html import html_table
from ..format.schema import Bucket, Constant, Instruction, Layout, Program, Space
from ..format.sizes import describe
from ..format.text import table
from ..format.written import written_arguments, written_names
from .communicators import communicator_bytes
from .packed import packed_bytes, plain_elsewhere
from .reload import reload_bytes
from .sizes import fresh_bytes, tensor_bytes

FRESH, WORKSPACE = "results of ops without an out variant", "workspaces of kernels"
PACKED = "weights packed for the processor"


@dataclass(frozen=True)
class Terms:
    """What a load decides: the kind of device, TorchAir's options, the arena that a shared pool has already, and
    whether weights are packed."""

    kind: str
    apart: bool = False
    output_clone: bool = False
    arena_there: int = 0
    pack_weights: bool = True


@dataclass(frozen=True)
class Item:
    """Bytes for one purpose: as promised, and what the allocator reserves for them at most."""

    name: str
    nbytes: int
    reserved: int


@dataclass(frozen=True)
class Need:
    """What one bucket needs in bytes: its plan's height, what its instructions allocate beside it, what the allocator
    reserves for both, how much of the plan holds copies of inputs and what it returns, and how much of that is handed
    out as tensors of its own; what it takes to warm up, and to
    set inputs aside that lie where a call writes; and what the allocator reserves for these two."""

    entry: str
    bucket: str
    height: int
    lower_bound: int
    fresh: int
    reserved: int
    inputs: int
    outputs: int
    cloned: int
    warm_up: int
    aside: int
    meanwhile: int

    @property
    def name(self) -> str:
        return f"{self.entry}: {self.bucket}"


@dataclass(frozen=True)
class Promise:
    """What a load takes in bytes, by purpose; and for a while, once the rest is there, what it takes to warm up and to
    set inputs aside, and to pack one weight after the other (`packing`; `packing_reserved` is what the allocator
    reserves for that). `reload`: what `load_weights` takes of the host's memory."""

    kind: str
    items: tuple[Item, ...]
    needs: tuple[Need, ...]
    reload: int = 0
    packing: int = 0
    packing_reserved: int = 0

    @property
    def warm_up(self) -> int:
        """One bucket after the other."""
        return max(need.warm_up for need in self.needs)

    @property
    def aside(self) -> int:
        """Copies of inputs that lie where the call that they are for writes, as outputs of an earlier call may: taken
        at such a call and given back at its end."""
        return max(need.aside for need in self.needs)

    @property
    def nbytes(self) -> int:
        return sum(item.nbytes for item in self.items)

    @property
    def reserved(self) -> int:
        return sum(item.reserved for item in self.items)

    @property
    def peak(self) -> int:
        """The most that is reserved at one time, while loading or in a call."""
        return self.reserved + max(self.packing_reserved, *(need.meanwhile for need in self.needs))

    def as_dict(self) -> dict[str, object]:
        totals = {"nbytes": self.nbytes, "reserved": self.reserved, "warm_up": self.warm_up, "aside": self.aside}
        totals["peak"] = self.peak
        return {**asdict(self), **totals}

    def __str__(self) -> str:
        return table(_HEAD, self._cells())

    def _repr_html_(self) -> str:
        return html_table(_HEAD, self._cells())

    def _cells(self) -> list[list[object]]:
        rows = [[i.name, i.nbytes, i.reserved] for i in self.items if i.nbytes or i.name in _ALWAYS]
        rows.append(["in all", self.nbytes, self.reserved])
        if self.warm_up:
            rows.append(["for a while, to warm up", self.warm_up, ALLOCATORS[self.kind].reserved(self.warm_up)])
        if self.aside:
            rows.append(["for a while, inputs set aside", self.aside, ALLOCATORS[self.kind].reserved(self.aside)])
        if self.packing:
            rows.append(["for a while, to pack weights", self.packing, self.packing_reserved])
        rows.append(["on the host, to load other weights", self.reload, self.reload])
        return [[name, f"{promised:,}", f"{reserved:,}"] for name, promised, reserved in rows]

    def by_bucket(self, most: int | None = None) -> str:
        """A table of what each bucket needs, or only the `most` largest."""
        head = ["bucket", "arena bytes", "lower bound", "over", "beside the arena", "inputs", "outputs"]
        rows = [
            [
                n.name,
                f"{n.height:,}",
                f"{n.lower_bound:,}",
                f"{n.height / max(1, n.lower_bound) - 1:.2%}",
                f"{n.fresh:,}",
                f"{n.inputs:,}",
                f"{n.outputs:,}",
            ]
            for n in (self.needs if most is None else sorted(self.needs, key=lambda n: -n.reserved)[:most])
        ]
        return table(head, rows)


_SHOWN = 8  # buckets in a message
_HEAD = ("memory", "promised", "reserved at most")
_ALWAYS = ("weights", "state", "arena")


def promise(program: Program, terms: Terms) -> Promise:
    """What a load of `program` takes under `terms`."""
    allocator, step = ALLOCATORS[terms.kind], program.alignment
    needs = tuple(_needs(program, allocator))
    apart = terms.apart and not terms.arena_there
    streams = max(bucket.streams for entry in program.entry_points for bucket in entry.buckets)
    packed = packed_bytes(program, terms.kind, terms.pack_weights)
    elsewhere = plain_elsewhere(program, terms.kind, terms.pack_weights)
    weights = _together(allocator, [c for number, c in enumerate(program.constants) if number not in elsewhere])
    state = _together(allocator, [program.constants[item.constant] for item in program.state])
    outputs = max(need.outputs if terms.output_clone else need.cloned for need in needs)
    arenas = [_round_up(need.height, step) for need in needs] if apart else [program.arena]
    if terms.arena_there >= program.arena:
        arenas = []  # a larger one is allocated before the smaller goes, so any growth counts whole
    fresh = [need.fresh for need in needs] if apart else [max(need.fresh for need in needs)]
    items = (
        Item("weights", weights, allocator.reserved(weights)),
        Item("state", state, allocator.reserved(state)),
        Item("arena", sum(arenas), sum(allocator.reserved(nbytes) for nbytes in arenas)),
        Item(FRESH, sum(fresh), sum(allocator.reserved(nbytes) for nbytes in fresh)),
        Item(WORKSPACE, *2 * (program.reserve.workspace * streams,)),
        Item("outputs kept by the caller, one call's", outputs, allocator.reserved(outputs)),
        Item(PACKED, sum(packed.values()), allocator.reserved_apart(list(packed.values()))),
        Item("buffers of communicators", *2 * (communicator_bytes(program) if terms.kind == "npu" else 0,)),
        Item("reserve for the device", *2 * (program.reserve.device,)),
    )
    here = terms.kind == "cpu"
    reload = reload_bytes(program, range(len(program.constants)) if here else elsewhere, packed if here else {})
    return Promise(terms.kind, items, needs, reload, *((0, 0) if here else _packing(program, packed, allocator)))


def refuse_beyond(promised: Promise, limit: int, whose: str, where: str) -> None:
    """Raises MemoryBudgetError, with the table and what would make it fit, where more than `limit` bytes would be
    taken; `whose` says who set the limit."""
    if promised.peak > limit:
        raise MemoryBudgetError(
            "the model would take more memory than there is for it",
            where=where,
            expected=f"at most {limit:,} bytes ({whose})",
            got=f"{promised.peak:,} bytes, {promised.peak - limit:,} too many\n{indented(promised)}",
            fix=what_fits(promised, limit),
        )


def what_fits(promised: Promise, limit: int) -> str:
    """Which buckets to leave out, or to make smaller by how much, so that the rest takes at most `limit` bytes."""
    takes = {need: need.reserved + need.meanwhile for need in promised.needs}
    rest = promised.reserved - max(need.reserved for need in promised.needs)
    kept = [need for need in promised.needs if rest + takes[need] <= limit]
    if not kept:
        over = rest + min(takes.values()) - limit
        return (
            f"no set of these buckets fits: even the smallest alone takes {over:,} bytes too many; use a smaller "
            "model, narrower dtypes or a larger device"
        )
    dropped = sorted((need for need in promised.needs if need not in kept), key=takes.__getitem__)
    names = "; ".join(need.name for need in dropped[:4]) + (f" and {len(dropped) - 4} more" if dropped[4:] else "")
    least = f"or make {dropped[-1].name} {rest + takes[dropped[-1]] - limit:,} bytes smaller"
    after = rest + max(need.reserved for need in kept) + max(need.meanwhile for need in kept)
    return f"build without the bucket {names}: it takes {after:,} bytes then; {least} (a smaller batch or length)"


def _needs(program: Program, allocator: Allocator) -> Iterator[Need]:
    for entry in program.entry_points:
        for bucket in entry.buckets:
            fresh, height = fresh_bytes(bucket), _round_up(bucket.height, program.alignment)
            copies = [n for n, offset in zip(bucket.inputs, bucket.input_offsets) if offset >= 0]
            inputs = [program.layouts[bucket.tensors[n].layout] for n in copies]
            outputs = [tensor_bytes(program.layouts[bucket.tensors[n].layout]) for n in bucket.outputs]
            warm_up, aside = _warm_up(program, bucket) if allocator.warms_up else 0, _together(allocator, inputs)
            yield Need(
                entry.name,
                describe(entry, bucket.sizes),
                bucket.height,
                bucket.lower_bound,
                fresh,
                allocator.reserved(height) + allocator.reserved(fresh),
                sum(map(tensor_bytes, inputs)),
                sum(outputs),
                sum(nbytes for nbytes, item in zip(outputs, entry.outputs) if item.clone),
                warm_up,
                aside,
                allocator.reserved(warm_up) + allocator.reserved(aside),
            )


def _together(allocator: Allocator, constants: Sequence[Constant | Layout]) -> int:
    """The bytes of tensors that lie in one block, each aligned as the device's allocator would; on the CPU apart."""
    return sum(_round_up(tensor_bytes(constant), allocator.block) for constant in constants)


def _packing(program: Program, packed: Mapping[int, int], allocator: Allocator) -> tuple[int, int]:
    """The most that it takes for a while to pack one weight: its plain values, and its form, which is then copied. In
    bytes, and as the allocator reserves them."""
    plain = {number: tensor_bytes(program.constants[number]) for number in packed}
    nbytes = max((packed[number] + plain[number] for number in packed), default=0)
    return nbytes, max((allocator.reserved_apart((packed[n], plain[n])) for n in packed), default=0)


def _warm_up(program: Program, bucket: Bucket) -> int:
    """What the first run of the instructions takes beside the rest: results of ops without an out variant, outside of
    the pool, and a copy of what lives on and is written."""
    copies = [_written_bytes(program, bucket, program.instructions[number]) for number in set(bucket.code)]
    return max(copies, default=0) + fresh_bytes(bucket)


def _written_bytes(program: Program, bucket: Bucket, item: Instruction) -> int:
    if item.is_event:
        return 0
    schema, written = _written(program.ops[item.op].schema)
    numbers = {*(n for n in item.outs if n >= 0), *(arg.index for arg in written_arguments(item, schema, written))}
    found = 0
    for space, index in {(bucket.tensors[n].space, bucket.tensors[n].index) for n in numbers}:
        if space == Space.STATE:
            found += tensor_bytes(program.constants[program.state[index].constant])
        elif space == Space.CALLER:
            found += tensor_bytes(program.layouts[bucket.tensors[bucket.inputs[index]].layout])
    return found


@functools.cache
def _written(schema: str) -> tuple[torch.FunctionSchema, tuple[str, ...]]:
    try:
        parsed = torch._C.parse_schema(schema)
    except RuntimeError as error:
        raise MalformedError("the schema of an op is none", where=schema) from error
    return parsed, written_names(parsed)


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def indented(promised: Promise) -> str:
    """The table, and that of the largest buckets, for the inside of a message."""
    text = f"{promised}\n{promised.by_bucket(_SHOWN)}"
    return "\n".join(f"    {line}" for line in text.splitlines())
