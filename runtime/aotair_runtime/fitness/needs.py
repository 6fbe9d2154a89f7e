"""What does a program demand, and which of it does a device have? One function for each row of a verdict."""

from collections.abc import Callable, Iterator, Sequence

import torch

from ..artifact.ops import resolve
from ..artifact.requirements import check_int8, check_soc, check_torch, check_vendor, needs_exact_int8
from ..confine.check import check_calls
from ..confine.op_table import NAMESPACES
from ..devices import KINDS, Device, Usage, forms, open_device
from ..errors import AotairError, ArtifactError, NamespaceError
from ..format.packed import needs_packed, packed_constants
from ..format.schema import Bucket, EntryPoint, Program, Requirements
from ..format.torch_names import dtype
from ..memory.budget import check_budget, check_memory, cost, pool_cost
from ..memory.promise import Promise, Terms, promise
from ..settings import Settings
from . import node
from .verdict import Requirement

_SHOWN = 80


def torch_row(program: Program) -> Requirement:
    need = program.requirements
    demanded = f"{_short(need.torch_min)} or newer (built with {_short(need.torch_built)})"
    return _asked("torch", demanded, torch.__version__, lambda: check_torch(program, ""))


def find_device(program: Program, wanted: str | torch.device | None) -> tuple[Device | None, Requirement]:
    """The device that the artifact would run on: the one `wanted`, else its own, else the CPU; None where there is
    none."""
    own = program.requirements.device
    asked = own if wanted is None else str(wanted)
    kind, device = asked.partition(":")[0], node.opened(asked[:_SHOWN])
    if isinstance(device, str):
        if wanted is not None or own not in KINDS:
            return None, Requirement("device", _short(asked), device, "missing", "run it where there is one")
        fix = "load it with device='cpu' (--device cpu), to try it and not to serve it"
        return open_device("cpu"), Requirement("device", own, f"cpu ({device})", "slower", fix)
    if kind == own:
        return device, Requirement("device", own, _named(device))
    if device.is_host:
        return device, Requirement("device", _short(own), "cpu", "slower", f"the CPU stands in for {_short(own)}")
    fix = f"set target.device to {kind} in the recipe and build again"
    return None, Requirement("device", _short(own), _named(device), "missing", fix)


def vendor_rows(program: Program, device: Device) -> Iterator[Requirement]:
    """The vendor's package and the SoC, which the CPU needs not."""
    need = program.requirements
    if device.is_host:
        return
    if need.vendor_min:
        demanded = f"{_short(need.vendor_min)} or newer"
        has = device.vendor_version or "none"
        yield _asked(f"package for {device.kind}", demanded, has, lambda: check_vendor(program, device, ""))
    if need.soc:
        demanded, has = f"a name that begins with {_short(need.soc)}", device.name or "none"
        yield _asked("SoC", demanded, has, lambda: check_soc(program, device, ""))


def int8_row(program: Program, device: Device) -> Iterator[Requirement]:
    """Whether products of int8 are what they were at build time."""
    if device.is_host and needs_exact_int8(program):
        yield _asked("exact int8", "VNNI", node.instruction_set(), lambda: check_int8(program, ""))


def op_rows(program: Program, device: Device, settings: Settings, where: str) -> Iterator[Requirement]:
    """One row for all ops that are there, one for each that is not, and one for the namespaces to allow. Raises
    MalformedError, where all are there, for a call that does not stay within its tensors."""
    refused: set[str] = set()
    missing: list[Requirement] = []
    ops = []
    for op in program.ops:
        try:
            ops.append(resolve(op, settings.allowed, where, host=device.is_host))
        except NamespaceError as error:
            if (namespace := op.name.partition("::")[0]) not in NAMESPACES:
                refused.add(namespace)
            missing.append(Requirement(f"op {_short(op.name)}", error.expected, "not allowed", "missing", error.fix))
        except ArtifactError as error:
            demanded, has = error.expected or "the op", error.got or error.what
            missing.append(Requirement(f"op {_short(op.name)}", demanded, has, "missing", error.fix))
    count = f"{len(program.ops)} ops with their schemas"
    yield Requirement("ops", count, f"{len(program.ops) - len(missing)} of them", "missing" if missing else "met")
    names = {op.name.partition("::")[0] for op in program.ops}
    more = ", ".join(_short(name) for name in sorted(names - set(NAMESPACES))) or "none"
    yield Requirement(
        "namespaces to allow",
        more,
        ", ".join(settings.allowed.namespaces) or "none is allowed",
        "missing" if refused else "met",
        f"if you trust the artifact: allow_namespaces={sorted(map(_short, refused))}" if refused else "",
    )
    yield from missing
    if not missing:
        check_calls(program, ops, settings.allowed, where)


def capture_row(
    program: Program, device: Device, settings: Settings, wanted: Sequence[tuple[EntryPoint, int]], where: str
) -> Requirement:
    """Graphs, streams and events, against what the device has and the caller allows."""
    pools = sum(len(entry.buckets) for entry in program.entry_points) if settings.apart else 1
    costs = [pool_cost(device, program)] * pools + [cost(_bucket(pair)) for pair in wanted]
    total = sum(costs, Usage())
    used, most = device.usage, device.limits
    demanded = f"{total.captures} captures, {total.streams} streams, {total.events} events"
    has = f"streams: {_left(most.streams, used.streams)}, events: {_left(most.events, used.events)}"
    return _asked("captures", demanded, has, lambda: check_budget(device, costs, settings.limits, where))


def memory_rows(program: Program, device: Device, settings: Settings, where: str) -> Iterator[Requirement]:
    """What is promised, against the budget and against what is free."""
    terms = Terms(device.kind, settings.apart, settings.enable_output_clone, 0, settings.pack_weights)
    try:
        promised = promise(program, terms)
    except (RuntimeError, MemoryError) as error:  # a weight is packed on trial, to know its size
        has = str(error).splitlines()[0] if str(error) else type(error).__name__
        yield Requirement("memory", "what it takes to pack a weight", has, "missing", "load with pack_weights=False")
        return
    need, demanded = program.requirements, f"{promised.peak:,} bytes"
    given = settings.memory_budget
    budget = need.memory_budget or need.memory_share or None if given is None else given
    if budget is not None:
        most = f"{budget:.0%} of {device.total():,}" if isinstance(budget, float) else f"{budget:,}"
        yield _memory("memory budget", demanded, f"{most} bytes", device, promised, budget, where)
    free = device.free()
    if free is not None:
        yield _memory("memory", demanded, f"{free:,} bytes free", device, promised, free, where)
        return
    there = node.available_memory()
    has, enough = f"{there:,} bytes available", promised.peak <= there
    fix = "" if enough else "the system swaps, or ends the process: end what else takes memory, or use a larger node"
    yield Requirement("memory", demanded, has, "met" if enough else "slower", fix)


def packed_row(program: Program, device: Device, settings: Settings) -> Iterator[Requirement]:
    """Whether the weights that the build wanted packed are, here."""
    wanted = [(number, op) for number, op in packed_constants(program) if not needs_packed(device.kind, op)]
    if not wanted:
        return
    kinds = {number: dtype(program.constants[number].dtype) for number, _ in wanted}
    there = [pair for pair in wanted if settings.pack_weights and forms.packs(device.kind, pair[1], kinds[pair[0]])]
    demanded, has = f"{len(wanted)} packed for the processor", f"a form for {len(there)} of them"
    if len(there) == len(wanted):
        yield Requirement("weights", demanded, has)
        return
    fix = "weights are read as they lie in the file" if settings.pack_weights else "pack_weights=False asks for that"
    yield Requirement("weights", demanded, has, "slower", fix)


def instructions_row(program: Program, device: Device) -> Iterator[Requirement]:
    """Whether the CPU has kernels of its own for what the program computes with."""
    if not device.is_host:
        return
    used = {layout.dtype for layout in program.layouts}
    lacking = sorted(used & node.emulated())
    has = node.instruction_set()
    demanded = ", ".join(sorted(used & {"bfloat16", "float16", "float32", "float64", "int8"})) or "none in particular"
    if not lacking and has != "DEFAULT":
        yield Requirement("instruction set", demanded, has)
        return
    fix = f"{', '.join(lacking)} is computed through float32" if lacking else "torch has no vector kernels for it"
    yield Requirement("instruction set", demanded, has, "slower", f"{fix}: use another processor")


# ---- asking ----------------------------------------------------------------------------------------------------------


def _asked(name: str, demanded: str, has: str, ask: Callable[[], None]) -> Requirement:
    """The row of what `ask` raises for, where it is missing."""
    try:
        ask()
    except AotairError as error:
        return Requirement(name, demanded, has, "missing", error.fix or error.what)
    return Requirement(name, demanded, has)


def _memory(
    name: str, demanded: str, has: str, device: Device, promised: Promise, limit: int | float, where: str
) -> Requirement:
    need = Requirements("", "", device.kind)
    return _asked(name, demanded, has, lambda: check_memory(device, promised, need, limit, where))


def _named(device: Device) -> str:
    return f"{device.torch_device} ({device.name})" if device.name else str(device.torch_device)


def _bucket(pair: tuple[EntryPoint, int]) -> Bucket:
    return pair[0].buckets[pair[1]]


def _left(most: int | None, used: int) -> str:
    return "no known limit" if most is None else f"{most - used:,} left"


def _short(text: str) -> str:
    return ascii(text)[1:-1][:_SHOWN]
