"""What two artifacts say of themselves, side by side: the recipe, versions, needs, inputs, buckets, proofs, sizes."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aotair_runtime.format.schema import Bucket, EntryPoint, Program
from aotair_runtime.format.sizes import describe, shape_text

from ..promise import promised


@dataclass(frozen=True)
class Fact:
    """Something that both artifacts say, and say otherwise; empty: it says nothing of that."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Amount:
    """A number of both: bytes, or an error."""

    name: str
    before: float
    after: float

    @property
    def growth(self) -> float:
        """By which share it grew; infinite where there was none."""
        return (self.after - self.before) / self.before if self.before else float("inf") if self.after else 0.0


def facts(one: Program, other: Program, read: Callable[[Program], Iterator[tuple[str, str]]]) -> tuple[Fact, ...]:
    """What `read` finds in both, where that differs."""
    mine, theirs = dict(read(one)), dict(read(other))
    names = dict.fromkeys((*mine, *theirs))
    found = [Fact(name, mine.get(name, ""), theirs.get(name, "")) for name in names]
    return tuple(fact for fact in found if fact.before != fact.after)


def recipe_facts(program: Program) -> Iterator[tuple[str, str]]:
    """What the recipe decided: digests where the artifact keeps no more of it."""
    yield "name", program.name
    yield "recipe", _short(program.origin.recipe)
    yield "passes and rules of its own", _short(program.origin.code)
    yield "exported graph", _short(program.origin.graph)
    yield "quantisation of the checkpoint", _short(program.quantisation)
    for part in (program.options, program.tolerance, program.reserve):
        for field in dataclasses.fields(part):
            yield f"{type(part).__name__.lower()}: {field.name}", str(getattr(part, field.name))


def version_facts(program: Program) -> Iterator[tuple[str, str]]:
    """What it was built with, and what it needs."""
    yield "built with", program.origin.versions or f"torch {program.requirements.torch_built}"
    for field in dataclasses.fields(program.requirements):
        if field.name != "torch_built":
            yield f"needs {field.name}", str(getattr(program.requirements, field.name))


def interface_facts(program: Program) -> Iterator[tuple[str, str]]:
    """Entry points with inputs, outputs and dimensions, and states."""
    for entry in program.entry_points:
        yield f"{entry.name}", "there"
        for item in entry.inputs:
            host = ", a list of the host" if item.host else ""
            text = (
                f"{item.dtype}{shape_text(entry, item.shape)} ({item.kind}{host}, pad {item.pad}, {item.value_range})"
            )
            yield f"{entry.name}: input {item.name}", text
        for number, output in enumerate(entry.outputs):
            text = f"{output.dtype}{shape_text(entry, output.shape)}{', its own memory' if output.clone else ''}"
            yield f"{entry.name}: output {number}", text
        yield f"{entry.name}: structure", repr(entry.structure)
        yield f"{entry.name}: constants", repr(entry.constants)
        for dim in entry.dims:
            yield (
                f"{entry.name}: dimension {dim.name}",
                f"{'padded' if dim.paddable else 'exact'}, {dim.least} at least",
            )
    for state in program.state:
        constant = program.constants[state.constant]
        yield f"state {state.name}", f"{constant.dtype}{list(constant.shape)}"


def bucket_facts(program: Program) -> Iterator[tuple[str, str]]:
    """Which buckets there are, with their streams and events."""
    for entry in program.entry_points:
        for name, bucket in _named(entry):
            streams = f"{bucket.streams} streams, {bucket.events} events" if bucket.streams > 1 else "one stream"
            yield name, f"{streams}, {len(bucket.inputs)} inputs"


def proof_facts(program: Program) -> Iterator[tuple[str, str]]:
    """What was shown for each bucket."""
    for entry in program.entry_points:
        for name, bucket in _named(entry):
            proof = bucket.proof
            if proof is not None:
                sampled = ", a sample" if proof.sampled else ""
                text = f"error {proof.max_abs_error:.3g}, {proof.units:.3g} units, {len(proof.padding)} padding runs"
                yield name, text + sampled


def amounts(one: Program, other: Program) -> tuple[Amount, ...]:
    """Memory that is promised, and the bytes of the files, where they differ."""
    mine, theirs = _amounts(one), _amounts(other)
    names = dict.fromkeys((*mine, *theirs))
    found = [Amount(name, mine.get(name, 0), theirs.get(name, 0)) for name in names]
    return tuple(amount for amount in found if amount.before != amount.after)


def worst_proof(program: Program) -> float:
    """The largest error of any proof, in units in the last place."""
    proofs = [bucket.proof for entry in program.entry_points for bucket in entry.buckets]
    return max((proof.units for proof in proofs if proof is not None), default=0.0)


def _amounts(program: Program) -> dict[str, float]:
    memory = promised(program)
    found: dict[str, float] = {"memory: peak": memory.peak}
    found |= {f"memory: {item.name}": item.nbytes for item in memory.items}
    found |= {f"file: {file.name}": file.nbytes for file in program.files}
    return found | {"files": sum(file.nbytes for file in program.files)}


def _named(entry: EntryPoint) -> Iterator[tuple[str, Bucket]]:
    for bucket in entry.buckets:
        yield f"{entry.name}: {describe(entry, bucket.sizes)}", bucket


def _short(digest: str) -> str:
    return digest[:12] or "not recorded"
