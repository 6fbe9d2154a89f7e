"""What can be said of each call of a bucket: what it moves and computes, what made it, how long it takes here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import Artifact, read_golden, read_program
from aotair_runtime.errors import AotairError
from aotair_runtime.format.debug_data import DebugData
from aotair_runtime.format.schema import EntryPoint, Program
from aotair_runtime.profile.costs import cost
from aotair_runtime.weights.golden import golden_inputs

from .ids import graph_id, places

NUMBERS = {
    "bytes": "Bytes that each call reads and writes, as its shapes say",
    "operations": "Floating-point operations of each call, as its shapes say",
    "passes": "The passes that made each call",
    "time": "Microseconds of each call, measured on this machine's CPU with the golden inputs",
}


def read(folder: Path) -> tuple[Program, DebugData]:
    """The program in a folder, and where its instructions come from, as far as that is there. Raises ArtifactError."""
    program = read_program(folder)
    return program, read_debug_data(Artifact(folder, program, ()))


def numbers_of(folder: Path, graph: str, name: str) -> dict[str, float | str]:
    """By the id of a node what `name` says of it. Raises AotairError."""
    program, debug = read(folder)
    entry, number = _bucket_of(program, graph)
    bucket = entry.buckets[number]
    if name == "time":
        return _times(folder, entry.name, number, places(program, bucket))
    said: dict[str, Callable[[int], float | str]] = {
        "bytes": lambda code: cost(program, bucket, program.instructions[code]).nbytes,
        "operations": lambda code: cost(program, bucket, program.instructions[code]).flops,
        "passes": lambda code: debug.of(code).passes or "not known",
    }
    return {str(place): said[name](bucket.code[place]) for place in places(program, bucket)}


def _bucket_of(program: Program, graph: str) -> tuple[EntryPoint, int]:
    known: dict[str, tuple[EntryPoint, int]] = {
        graph_id(entry, bucket): (entry, number)
        for entry in program.entry_points
        for number, bucket in enumerate(entry.buckets)
    }
    if graph not in known:
        raise AotairError("the artifact has no such graph", expected="; ".join(known), got=graph)
    return known[graph]


def _times(folder: Path, entry: str, number: int, calls: list[int]) -> dict[str, float | str]:
    import aotair

    with aotair.load(folder, device="cpu", capture="lazy") as model:
        spec = model.entry_points[entry].spec
        given = golden_inputs(read_golden(model.artifact), spec, number, model.device)
        inputs: list[Any] = [t.tolist() if item.host else t for item, t in zip(spec.inputs, given, strict=True)]
        with model.profile() as profile:
            model.entry_points[entry].flat(inputs)
        (measured,) = profile.buckets
    return {str(place): round(measured.steps[place].seconds * 1e6, 3) for place in calls}
