"""The same calls through each form of a model, as far as to the first that is wrong."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import Artifact, read_golden
from aotair_runtime.call.buckets import choose, read_sizes
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.errors import AotairError
from aotair_runtime.format.schema import EntryPoint, Tolerance
from aotair_runtime.format.sizes import describe
from aotair_runtime.model import Model
from aotair_runtime.weights.golden import compare_bucket, golden_inputs, replay_bucket

from ..diff.weights import weight_changes
from ..disk.scratch import scratch
from ..export.exported import Exported
from ..pack import lay_down
from ..passes import pipeline
from ..passes.observer import Observer
from ..program import Built, build_program, specialised
from ..prove.prove import on_host
from ..prove.runs import Run
from ..recipe.entry import EntryJob
from ..recipe.job import Job
from .devices import Compiled, on_device, on_host_and_device
from .finding import Debugged, Finding, Rung
from .ladder import Form, Ladder, copied, distinct
from .original import Named, Reference, padded, smallest_bucket
from .programs import Code, code_of
from .replays import Call
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
        for sizes in _sizes(job, asked):
            found.append(_debug_bucket(begun, job, sizes, asked, artifact, heard))
            if not found[-1].is_right:
                return found
    return found


def _debug_bucket(
    begun: Begun,
    job: EntryJob,
    sizes: tuple[int, ...],
    asked: Asked,
    artifact: Artifact | None,
    heard: Heard,
) -> Debugged:
    search, device = Search(heard), "host"
    number = next(n for n, one in enumerate(begun.exported) if one.entry == job.entry and one.serves(sizes))
    exported, forms = begun.exported[number], distinct(begun.forms[number])
    reference = Reference(begun.model, job, exported)
    compared = _Compared(list(_calls(job, reference, asked, sizes)), reference)
    search.notes += _notes(job, asked, compared)
    ladder = Ladder(reference, exported, job.tolerance)
    broken = ladder.climb(forms, compared.calls, compared.wanted, search.rung)
    if broken is None:
        forms = distinct([forms[-1], *_bucket_forms(begun.job, job, exported, sizes)])
        broken = ladder.climb(forms, compared.calls, compared.wanted, search.rung, start=1)
    reference.reset()
    if broken is not None:
        search.found(broken.finding, broken.points)
    else:
        trails = functools.partial(ladder.trail, forms[-1])
        device = _debug_program(search, begun, job, sizes, artifact, asked.device, compared, trails)
        reference.reset()
    return search.result(begun.job.name, job.entry, job.bucket_name(sizes), device)


def _notes(job: EntryJob, asked: Asked, compared: "_Compared") -> Iterator[str]:
    """What a search that finds nothing has not looked at."""
    others = len(job.bucket_sizes()) - 2
    if asked.inputs is None and asked.bucket is None and others > 0:
        yield f"of {job.entry}, the smallest and the largest bucket were called; --bucket calls one of {others} others"
    for run in compared.wanted.values():
        for name, tensor in zip(run.names, run.tensors):
            if tensor.numel() and bool(tensor.isnan().all()):
                yield f"the original answers {name} with NaN alone, which says nothing"
                return


class _Compared:
    """Calls, and by their words what the original leaves behind of each."""

    def __init__(self, calls: Sequence[Named], reference: Reference):
        self.calls = calls
        self.wanted = {one.words: reference.run(one) for one in calls}


def _debug_program(
    search: Search,
    begun: Begun,
    job: EntryJob,
    sizes: tuple[int, ...],
    artifact: Artifact | None,
    device: str | None,
    compared: _Compared,
    trails: Callable[[Named], tuple[Run, Trail]],
) -> str:
    """The program of the bucket, as a build writes it or as the artifact has it; the name of the device."""
    with scratch() as folder:
        built = _built(begun, job, sizes)
        written = lay_down(built, folder)
        intended = code_of(written, job.entry, sizes)
        if artifact is not None and _has_other_weights(search, written, artifact, job.tolerance):
            return "host"  # whatever reads them is wrong too
        program = Compiled(artifact or written, intended, begun.job.target.allowed, job.tolerance)
        return on_host_and_device(search, program, device, compared.calls, compared.wanted, trails)


def _entry_jobs(job: Job, asked: Asked) -> Sequence[EntryJob]:
    if asked.entry is None and asked.inputs is not None:
        return job.entries[:1]
    named = [one for one in job.entries if asked.entry in (None, one.entry)]
    if not named:
        names = ", ".join(one.entry for one in job.entries)
        raise AotairError("no such entry point", where=job.where, expected=names, got=f"{asked.entry}")
    if asked.bucket is None:
        return named
    names_of = {one.entry: [one.bucket_name(sizes) for sizes in one.bucket_sizes()] for one in named}
    found = [one for one in named if asked.bucket in names_of[one.entry]]
    if not found:
        expected = "; ".join(f"{entry}: {name}" for entry, names in names_of.items() for name in names)
        raise AotairError("no such bucket", where=job.where, expected=expected, got=asked.bucket)
    return found


def _sizes(job: EntryJob, asked: Asked) -> list[tuple[int, ...]]:
    """The buckets to look at: that of the inputs, the one that is asked for, or the smallest and the largest."""
    if asked.inputs is not None:
        return [smallest_bucket(job, asked.inputs)]
    sizes = job.bucket_sizes()
    if asked.bucket is not None:
        return [one for one in sizes if job.bucket_name(one) == asked.bucket]
    return list(dict.fromkeys((sizes[0], sizes[-1])))


def _calls(job: EntryJob, reference: Reference, asked: Asked, sizes: tuple[int, ...]) -> Iterator[Named]:
    if asked.inputs is None:
        yield from reference.calls(sizes)
        return
    states = {name: value for name, value in (asked.states or {}).items() if name in reference.states}
    yield Named("the inputs given", Call(padded(job, asked.inputs, sizes), states), Call(dict(asked.inputs), states))


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


def _has_other_weights(search: Search, built: Artifact, artifact: Artifact, tolerance: Tolerance) -> bool:
    """Whether a weight of the artifact is not the model's; what was only rounded otherwise, as other processors do with
    weights that are made of others, is a note. Raises AotairError where the artifact is of another recipe."""
    for change in weight_changes(built, artifact):
        if change.what == "shape":
            raise AotairError(
                f"the artifact is of another recipe: its weight {change.name} is another one",
                where=str(artifact.path),
                expected=change.before,
                got=change.after,
            )
        if change.what == "values" and change.relative <= tolerance.scale:
            search.notes.append(f"the weight {change.name} is rounded otherwise here, by {change.largest:.3g} at most")
        elif change.what == "values":
            by = f"{change.numbers} of {change.of} numbers, by {change.largest:.3g} at most"
            what = f"the weight {change.name} of the artifact is not the model's: {by}"
            search.found(Finding("weights", change.name, what, certain=True))
    return bool(search.findings)


# ---- of an artifact alone --------------------------------------------------------------------------------------------


def debug_artifact(artifact: Artifact, asked: Asked, allowed: Allowed, heard: Heard) -> Debugged:
    """Where a device leaves what the host computes of the same program; every bucket against its golden tensors, where
    no inputs are given. Raises AotairError where the artifact has no such entry point or bucket."""
    search, buckets = Search(heard), _buckets(artifact, asked)
    tolerance = artifact.program.tolerance
    spec, number = buckets[0]
    if asked.inputs is None:
        golden = read_golden(artifact)
        with on_host(artifact, allowed, enable_output_clone=False) as model:
            wrong = next((one for one in buckets if not _is_golden(search, model, golden, *one)), None)
        if wrong is not None:
            what = "the program gives other numbers than the original did: with --recipe it is told from where on"
            search.found(Finding("instruction", "", what))
            name = describe(wrong[0], wrong[0].buckets[wrong[1]].sizes)
            return search.result(artifact.program.name, wrong[0].name, name, "host")
        given = golden_inputs(golden, spec, number, torch.device("cpu"))
        call = Named("golden inputs", Call({one.name: t for one, t in zip(spec.inputs, given)}, {}))
    else:
        search.notes.append("the host and the device were compared: --recipe compares with the model too")
        call = Named("the inputs given", Call(asked.inputs, asked.states or {}))
    code = Code(artifact.program, spec, spec.buckets[number], read_debug_data(artifact))
    device = on_device(search, Compiled(artifact, code, allowed, tolerance), asked.device, [call])
    return search.result(artifact.program.name, spec.name, describe(spec, code.bucket.sizes), device)


def _is_golden(search: Search, model: Model, golden: Mapping[str, torch.Tensor], spec: EntryPoint, number: int) -> bool:
    """Whether a bucket, on the host, leaves behind what the original did: outputs, mutated inputs and states."""
    found = compare_bucket(replay_bucket(model, golden, spec, number), spec, number, model.program.tolerance)
    form = f"the program, on the host: {spec.name}, {found.bucket}"
    search.rung(Rung(form, "golden inputs", found.max_abs_error, found.units, found.within))
    return found.within


def _buckets(artifact: Artifact, asked: Asked) -> list[tuple[EntryPoint, int]]:
    """The buckets that are asked for, by number; that of the inputs, where any are given."""
    specs = [spec for spec in artifact.program.entry_points if asked.entry in (None, spec.name)]
    if asked.inputs is not None and specs:
        spec, inputs = specs[0], asked.inputs
        if missing := [one.name for one in spec.inputs if one.name not in inputs]:
            raise AotairError("inputs are missing", where=str(artifact.path), expected=", ".join(missing))
        return [(spec, choose(spec, read_sizes(spec, [inputs[one.name].shape for one in spec.inputs])))]
    every = [(spec, number) for spec in specs for number in range(len(spec.buckets))]
    found = [
        (spec, number) for spec, number in every if asked.bucket in (None, describe(spec, spec.buckets[number].sizes))
    ]
    if not found:
        names = [f"{one.name}: {describe(one, b.sizes)}" for one in artifact.program.entry_points for b in one.buckets]
        got = f"{asked.entry or 'any'}: {asked.bucket or 'any'}"
        raise AotairError("no such bucket", where=str(artifact.path), expected="; ".join(names), got=got)
    return found
