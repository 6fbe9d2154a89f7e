"""A bucket's program on the host and on a device: one instruction after another, and as it is captured."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from aotair_runtime.artifact.open import Artifact
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.devices import open_device
from aotair_runtime.fitness.node import opened
from aotair_runtime.format.schema import Tolerance
from aotair_runtime.model import Model
from aotair_runtime.settings import Settings

from ..prove.prove import on_host
from ..prove.runs import Run
from .finding import Finding
from .original import Named
from .programs import Code, code_of, listed, missing_waits, stale_list, wrong_instruction
from .replays import StepError, captured, stepped
from .search import Search
from .trail import Trail, points


@dataclass(frozen=True)
class Compiled:
    """A bucket of an artifact: `code` as it should be, what a load of it allows, and how far numbers may be off."""

    artifact: Artifact
    code: Code
    allowed: Allowed
    tolerance: Tolerance


def on_host_and_device(
    search: Search,
    program: Compiled,
    device: str | None,
    calls: Sequence[Named],
    wanted: Mapping[str, Run],
    graphs: Callable[[Named], tuple[Run, Trail]],
) -> str:
    """The program on the host, against what the bucket's graph does, and on the device; the device's name."""
    intended, tolerance = program.code, program.tolerance
    code = code_of(program.artifact, intended.entry.name, intended.bucket.sizes)
    with on_host(program.artifact, program.allowed) as model:
        for one in calls:
            try:
                got, trail = stepped(model, code.entry.name, one.call, code.debug)
            except StepError as error:
                search.found(_failed(error, "the host"))
                return "host"
            if not search.compare("the program, on the host", one, wanted[one.words], got, tolerance):
                _, want = graphs(one)
                finding = wrong_instruction(code, trail, want, tolerance, intended, "the host")
                search.found(finding or _unexplained("the program on the host"), points(trail, want, tolerance))
                return "host"
    return on_device(search, replace(program, code=code), device, calls)


def _failed(error: StepError, device: str) -> Finding:
    what = f"{error.node} fails on {device}: {error}"
    return Finding("instruction", error.op, what, (error.node,), (error.line or error.node,), True)


def _unexplained(form: str) -> Finding:
    what = f"{form} gives other numbers, and no single instruction does: what was looked at one by one is right"
    return Finding("device", form, what)


def on_device(search: Search, program: Compiled, wanted: str | None, calls: Sequence[Named]) -> str:
    """The program on a device: what no order of streams is given for, its instructions one by one, and as captured;
    the device's name. `wanted` may be None: that of the artifact, or the host where it is not there."""
    for race in missing_waits(program.code):
        search.found(race)
    name = wanted or program.artifact.program.requirements.device
    device = open_device(name) if wanted is not None else opened(name)
    if isinstance(device, str):
        search.notes.append(f"{name} was not looked at: {device}")
        device, name = open_device("cpu"), "cpu"
    settings = Settings(clone_input=True, enable_output_clone=True, allowed=program.allowed)
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(Model(program.artifact, device, settings))
        host = model if name == "cpu" else stack.enter_context(on_host(program.artifact, program.allowed))
        for one in calls:
            try:
                want, trail = stepped(host, program.code.entry.name, one.call, program.code.debug)
                found = want if name == "cpu" else _one_by_one(search, model, program, one, want, trail, name)
            except StepError as error:
                search.found(_failed(error, name))
                break
            if found is None or not _replayed(search, model, program, one, found, name):
                break
    return name


def _one_by_one(
    search: Search, model: Model, program: Compiled, one: Named, want: Run, trail_there: Trail, device: str
) -> Run | None:
    """What the instructions leave behind on a device, or None where that is not what they leave on the host."""
    got, trail = stepped(model, program.code.entry.name, one.call, program.code.debug)
    if search.compare(f"one by one, on {device}", one, want, got, program.tolerance):
        return got
    finding = wrong_instruction(program.code, trail, trail_there, program.tolerance, None, device)
    search.found(finding or _unexplained(f"{device}, one by one,"), points(trail, trail_there, program.tolerance))
    return None


def _replayed(search: Search, model: Model, program: Compiled, one: Named, want: Run, device: str) -> bool:
    """The captured graph, after a call with other lists; whether it does what its instructions do one by one."""
    code, tolerance = program.code, program.tolerance
    entry = code.entry.name
    others = {spec.name: _halved(one.call.inputs[spec.name]) for spec in code.entry.inputs if spec.host}
    got = captured(model, entry, one.call, others)
    if search.compare(f"captured, on {device}", one, want, got, tolerance):
        return True
    names, lists = listed(code), list(others.values())
    runs = {name: stepped(model, entry, one.call, code.debug, (name, lists))[0] for name in names}
    finding = stale_list(names, runs, got, tolerance)
    if finding is None and any(found.kind == "wait" for found in search.findings):
        return False  # which explains it
    search.found(finding or _unexplained(f"the captured graph on {device}"))
    return False


def _halved(lengths: torch.Tensor) -> list[int]:
    """Other lengths that are legal wherever these are."""
    return [max(1, length // 2) if length > 0 else length for length in lengths.tolist()]
