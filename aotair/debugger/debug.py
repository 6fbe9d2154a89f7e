"""The same calls through each form of a model, as far as to the first that is wrong."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import Artifact, read_golden
from aotair_runtime.call.buckets import choose, read_sizes
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.errors import AotairError
from aotair_runtime.format.schema import EntryPoint
from aotair_runtime.format.sizes import describe
from aotair_runtime.format.structure import leaf_names
from aotair_runtime.weights.golden import golden_inputs, key

from ..diff.weights import weight_changes
from ..disk.scratch import scratch
from ..export.exported import Exported
from ..pack import lay_down
from ..passes import pipeline
from ..passes.observer import Observer
from ..program import Built, build_program, specialised
from ..prove.apart import apart
from ..prove.prove import on_host
from ..prove.runs import Run
from ..recipe.entry import EntryJob
from ..recipe.job import Job
from .devices import Compiled, on_device, on_host_and_device
from .finding import Debugged, Finding, Rung
from .ladder import Form, Ladder, copied, distinct
from .original import Named, Reference, padded, smallest_bucket
from .programs import Code, code_of
from .replays import Call, stepped
from .search import Asked, Heard, Search
from .trail import Trail

# ---- of a recipe -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begun:
    """A build as far as its passes: the job, the original, the graphs, and what each stage made of them, by graph."""

    job: Job
    model: torch.nn.Module
    exported: Sequence[Exported]
    forms: Mapping[int, Sequence[Form]]  # by the number of the graph


def debug_recipe(begun: Begun, asked: Asked, artifact: Artifact | None, heard: Heard) -> list[Debugged]:
    """Where the numbers of a recipe's model go wrong on their way to a device, by entry point up to the first that is
    wrong; `artifact`: one that was built of it, whose program is called instead of the one that a build would write."""
    found: list[Debugged] = []
    for job in _entry_jobs(begun.job, asked):
        for sizes, own in _sizes(job, asked):
            found.append(_debug_bucket(begun, job, sizes, own, asked, artifact, heard))
            if not found[-1].is_right:
                return found
    return found


def _debug_bucket(
    begun: Begun,
    job: EntryJob,
    sizes: tuple[int, ...],
    own: tuple[int, ...],
    asked: Asked,
    artifact: Artifact | None,
    heard: Heard,
) -> Debugged:
    search = Search(heard)
    number = next(n for n, one in enumerate(begun.exported) if one.entry == job.entry and one.serves(sizes))
    exported, forms = begun.exported[number], distinct(begun.forms[number])
    reference = Reference(begun.model, job, exported)
    if asked.inputs is not None:
        _check_padding(search, job, reference, asked, own, sizes)
    compared = _Compared(list(_calls(job, reference, asked, sizes)), reference)
    ladder = Ladder(reference, exported, job.tolerance)
    broken = ladder.climb(forms, compared.calls, compared.wanted, search.rung)
    if broken is None:
        more = distinct([forms[-1], *_bucket_forms(begun.job, job, exported, sizes)])
        broken = ladder.climb(more, compared.calls, compared.wanted, search.rung, start=1)
        forms = more
    device = "host"
    reference.reset()
    if broken is not None:
        search.found(broken.finding, broken.points)
    else:
        trails = {one.words: ladder.trail(forms[-1], one) for one in compared.calls}
        device = _debug_program(search, begun, job, sizes, artifact, asked.device, compared, trails)
        reference.reset()
    return search.result(begun.job.name, job.entry, _bucket_name(job, sizes), device)


class _Compared:
    """Calls, and by their words what the original leaves behind of each."""

    def __init__(self, calls: Sequence[Named], reference: Reference):
        self.calls = calls
        self.wanted = {one.words: reference.run(one.call) for one in calls}


def _debug_program(
    search: Search,
    begun: Begun,
    job: EntryJob,
    sizes: tuple[int, ...],
    artifact: Artifact | None,
    device: str | None,
    compared: _Compared,
    trails: Mapping[str, tuple[Run, Trail]],
) -> str:
    """The program of the bucket, as a build writes it or as the artifact has it; the name of the device."""
    with scratch() as folder:
        built = _built(begun, job, sizes)
        written = lay_down(built, folder)
        intended = code_of(written, job.entry, sizes)
        if artifact is not None and _has_other_weights(search, written, artifact):
            return "host"  # whatever reads them is wrong too
        program = Compiled(artifact or written, intended, begun.job.target.allowed, job.tolerance)
        return on_host_and_device(search, program, device, compared.calls, compared.wanted, trails)


def _entry_jobs(job: Job, asked: Asked) -> Sequence[EntryJob]:
    if asked.entry is None:
        return job.entries[:1] if asked.inputs is not None else job.entries
    found = [one for one in job.entries if one.entry == asked.entry]
    if not found:
        names = ", ".join(one.entry for one in job.entries)
        raise AotairError("no such entry point", where=job.where, expected=names, got=asked.entry)
    return found


def _bucket_name(job: EntryJob, sizes: tuple[int, ...]) -> str:
    return ", ".join(f"{dim}={size}" for dim, size in zip(job.dims(), sizes)) or "static"


def _sizes(job: EntryJob, asked: Asked) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The buckets to look at, each with the sizes of the inputs: that of the inputs, the one that is asked for, or the
    smallest and the largest."""
    if asked.inputs is not None:
        return [smallest_bucket(job, asked.inputs)]
    names = {_bucket_name(job, sizes): sizes for sizes in job.bucket_sizes()}
    if asked.bucket is None:
        return [(sizes, sizes) for sizes in dict.fromkeys((next(iter(names.values())), list(names.values())[-1]))]
    if asked.bucket not in names:
        raise AotairError("no such bucket", where=job.where, expected="; ".join(names), got=asked.bucket)
    return [(names[asked.bucket], names[asked.bucket])]


def _calls(job: EntryJob, reference: Reference, asked: Asked, sizes: tuple[int, ...]) -> Iterator[Named]:
    if asked.inputs is None:
        yield from reference.calls(sizes)
        return
    states = {name: value for name, value in (asked.states or {}).items() if name in reference.states}
    yield Named("the inputs given", Call(padded(job, asked.inputs, sizes), states))


def _check_padding(
    search: Search, job: EntryJob, reference: Reference, asked: Asked, own: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    """Whether the model itself gives other numbers for the inputs as a call pads them."""
    assert asked.inputs is not None
    if own == sizes:
        return
    states = {name: value for name, value in (asked.states or {}).items() if name in reference.states}
    plain = reference.run(Call(asked.inputs, states))
    full = reference.run(Call(padded(job, asked.inputs, sizes), states))
    cut = [tensor[tuple(slice(0, size) for size in want.shape)] for tensor, want in zip(full.tensors, plain.tensors)]
    found = apart(plain, Run(full.names, cut), job.tolerance)
    search.rung(Rung("the model, padded", "the inputs given", found.error, found.units, not found.wrong))
    if found.wrong:
        names = ", ".join(found.wrong)
        what = f"padding changes what the model itself answers ({names}): the bucket's inputs are not those given"
        search.found(Finding("padding", names, what, certain=True))


def _bucket_forms(job: Job, one: EntryJob, exported: Exported, sizes: tuple[int, ...]) -> Iterator[Form]:
    """The graph with a bucket's sizes, and after each pass over it."""
    module, _ = specialised(exported, job, one, sizes)
    yield Form("specialise", copied(module.graph))
    forms: list[Form] = []
    observer = Observer(job.target, listener=lambda stage, graph, _: forms.append(Form(stage, copied(graph))))
    pipeline.apply_to_bucket(module, job.config, job.target, observer)
    yield from forms


def _built(begun: Begun, job: EntryJob, sizes: tuple[int, ...]) -> Built:
    """The program of that bucket alone."""
    one = replace(job, buckets=[dict(zip(job.dims(), sizes))])
    graphs = [graph for graph in begun.exported if graph.entry == job.entry]
    return build_program(graphs, replace(begun.job, entries=(one,)), lambda *_: None)


def _has_other_weights(search: Search, built: Artifact, artifact: Artifact) -> bool:
    for change in weight_changes(built, artifact):
        if change.what not in ("values", "shape"):
            continue
        by = f"{change.numbers} of {change.of} numbers, by {change.largest:.3g} at most" if change.numbers else ""
        what = f"the weight {change.name} of the artifact is not the model's: {by or change.after}"
        search.found(Finding("weights", change.name, what, certain=True))
    return bool(search.findings)


# ---- of an artifact alone --------------------------------------------------------------------------------------------


def debug_artifact(artifact: Artifact, asked: Asked, allowed: Allowed, heard: Heard) -> Debugged:
    """Where a device leaves what the host computes of the same program; against the golden outputs where no inputs are
    given. Raises AotairError where the artifact has no such entry point or bucket."""
    search = Search(heard)
    spec, number = _bucket(artifact, asked)
    code = Code(artifact.program, spec, spec.buckets[number], read_debug_data(artifact))
    program = Compiled(artifact, code, allowed, artifact.program.tolerance)
    call = Named("the inputs given", Call(asked.inputs or {}, asked.states or {}))
    golden: Run | None = None
    if asked.inputs is None:
        tensors = read_golden(artifact)
        given = golden_inputs(tensors, spec, number, torch.device("cpu"))
        call = Named("golden inputs", Call({one.name: t for one, t in zip(spec.inputs, given)}, {}))
        golden = _golden_run(tensors, spec, number)
    with on_host(artifact, allowed) as model:
        got, trail = stepped(model, spec.name, call.call, code.debug)
    name = describe(spec, code.bucket.sizes)
    if golden is not None:
        outputs = Run(golden.names, got.tensors[: len(golden.tensors)])
        if not search.compare("the program, on the host", call, golden, outputs, program.tolerance):
            what = "the program gives other numbers than the original did: with --recipe it is told from where on"
            search.found(Finding("instruction", "", what))
            return search.result(artifact.program.name, spec.name, name, "host")
    device = on_device(search, program, asked.device, [call], {call.words: (got, trail)})
    return search.result(artifact.program.name, spec.name, name, device)


def _bucket(artifact: Artifact, asked: Asked) -> tuple[EntryPoint, int]:
    for spec in artifact.program.entry_points:
        if asked.entry not in (None, spec.name):
            continue
        if asked.inputs is not None:
            inputs = asked.inputs
            if missing := [one.name for one in spec.inputs if one.name not in inputs]:
                raise AotairError("inputs are missing", where=str(artifact.path), expected=", ".join(missing))
            return spec, choose(spec, read_sizes(spec, [inputs[one.name].shape for one in spec.inputs]))
        for number, bucket in enumerate(spec.buckets):
            if asked.bucket in (None, describe(spec, bucket.sizes)):
                return spec, number
    names = [f"{one.name}: {describe(one, b.sizes)}" for one in artifact.program.entry_points for b in one.buckets]
    got = f"{asked.entry or 'any'}: {asked.bucket or 'any'}"
    raise AotairError("no such bucket", where=str(artifact.path), expected="; ".join(names), got=got)


def _golden_run(golden: Mapping[str, torch.Tensor], spec: EntryPoint, number: int) -> Run:
    names = list(leaf_names(spec.structure))
    return Run(names, [golden[key(spec.name, number, "out", place)] for place in range(len(names))])
