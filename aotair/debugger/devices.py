"""A bucket's program on the host and on a device: one instruction after another, and as it is captured."""

from collections.abc import Mapping, Sequence

import torch

from aotair_runtime.artifact.open import Artifact
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.devices import open_device
from aotair_runtime.fitness.node import opened
from aotair_runtime.format.schema import EntryPoint, Tolerance
from aotair_runtime.model import Model
from aotair_runtime.settings import Settings

from ..prove.prove import on_host
from ..prove.runs import Run
from .finding import Finding
from .original import Named
from .programs import Code, code_of, listed, missing_waits, stale_list, wrong_instruction
from .replays import Call, captured, stepped
from .search import Search
from .trail import Trail, points


def on_host_and_device(
    search: Search,
    artifact: Artifact,
    intended: Code,
    allowed: Allowed,
    device: str | None,
    calls: Sequence[Named],
    wanted: Mapping[str, Run],
    graphs: Mapping[str, tuple[Run, Trail]],
    tolerance: Tolerance,
) -> str:
    """The program on the host, against the bucket's graph, and on the device; the device's name."""
    code = code_of(artifact, intended.entry.name, intended.bucket.sizes, intended.debug)
    trails = {}
    with on_host(artifact, allowed) as model:
        for one in calls:
            got, trail = stepped(model, code.entry.name, one.call, code.debug)
            trails[one.words] = (got, trail)
            if not search.compare("the program, on the host", one, wanted[one.words], got, tolerance):
                want = graphs[one.words][1]
                finding = wrong_instruction(code, trail, want, tolerance, intended, "the host")
                search.found(finding or _unexplained("the program on the host"), points(trail, want, tolerance))
                return "host"
    return on_device(search, artifact, code, allowed, device, calls, trails, tolerance)


def _unexplained(form: str) -> Finding:
    what = f"{form} gives other numbers, and no single instruction does: what was looked at one by one is right"
    return Finding("device", form, what)


def on_device(
    search: Search,
    artifact: Artifact,
    code: Code,
    allowed: Allowed,
    wanted: str | None,
    calls: Sequence[Named],
    host: Mapping[str, tuple[Run, Trail]],
    tolerance: Tolerance,
) -> str:
    """The program on a device: what no order of streams is given for, its instructions one by one, and as captured."""
    for race in missing_waits(code):
        search.found(race)
    name = wanted or artifact.program.requirements.device
    device = open_device(name) if wanted is not None else opened(name)
    if isinstance(device, str):
        search.notes.append(f"{name} was not looked at: {device}")
        device, name = open_device("cpu"), "cpu"
    settings = Settings(clone_input=True, enable_output_clone=True, allowed=allowed)
    with Model(artifact, device, settings) as model:
        for one in calls:
            want, trail_there = host[one.words]
            if name != "cpu":  # where it was called one by one already
                got, trail = stepped(model, code.entry.name, one.call, code.debug)
                if not search.compare(f"one by one, on {name}", one, want, got, tolerance):
                    finding = wrong_instruction(code, trail, trail_there, tolerance, None, name)
                    search.found(finding or _unexplained(f"{name}, one by one,"), points(trail, trail_there, tolerance))
                    return name
                want = got
            if not _replayed(search, model, code, one, want, name, tolerance):
                return name
    return name


def _replayed(
    search: Search, model: Model, code: Code, one: Named, want: Run, device: str, tolerance: Tolerance
) -> bool:
    """The captured graph, after a call with other lists; whether it does what its instructions do one by one."""
    entry = code.entry.name
    before = {name: _other(code.entry, name, tensor) for name, tensor in one.call.inputs.items()}
    captured(model, entry, Call(before, one.call.states))
    got = captured(model, entry, one.call)
    if search.compare(f"captured, on {device}", one, want, got, tolerance):
        return True
    lists = [before[spec.name].tolist() for spec in code.entry.inputs if spec.host]
    names = listed(code)
    runs = {name: stepped(model, entry, one.call, code.debug, (name, lists))[0] for name in names}
    finding = stale_list(names, runs, got, tolerance)
    if finding is None and any(found.kind == "wait" for found in search.findings):
        return False  # which explains it
    search.found(finding or _unexplained(f"the captured graph on {device}"))
    return False


def _other(entry: EntryPoint, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Another value of a list of lengths: each shorter by one where it can be; of other inputs the same."""
    spec = next(spec for spec in entry.inputs if spec.name == name)
    return (tensor - 1).clamp(min=1) if spec.host else tensor
