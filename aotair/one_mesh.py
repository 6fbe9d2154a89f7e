"""The model as the ranks of one mesh share it out: exported, optimised and planned; what becomes of it, and what is
said of it."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from aotair_runtime.format.mesh import mesh_name, mesh_text
from aotair_runtime.format.schema import Program
from aotair_runtime.format.torch_names import dtype

from . import fusion
from .errors import ExportError
from .export.entries import export_entries
from .export.exported import Exported
from .export.identity import unified
from .model.load import make_model
from .parallel.own import shares_itself
from .parallel.split import Split, split
from .passes import pipeline
from .passes.observer import Observer
from .program import Built, build_program, run_bucket_passes
from .promise import promised
from .recipe.job import Job
from .report.explain import Explained
from .summary import Bisection, OfMesh, SharedOut

Seen = Callable[[str, torch.fx.Graph, str], None]


@dataclass
class OneMesh:
    """`job` is for this mesh alone, `shared` the model as its rank 0 has it, and `exported` the graphs of that."""

    job: Job
    shared: Split
    exported: Sequence[Exported]
    observer: Observer
    bisection: Bisection

    def optimise(self) -> None:
        """All passes, over each graph in place."""
        for one, label in zip(self.exported, labels(self.exported), strict=True):
            with self.observer.over(label):
                pipeline.apply(one.module, self.job.config, self.observer, self.bisection.stop_after, self.job.rules)

    def run_bucket_passes(self) -> None:
        """Those that need numbers for sizes, over the largest buckets."""
        run_bucket_passes(self.exported, self.job, self.observer)

    def planned(self, progress: Callable[[int, int], None], jobs: int = 1) -> Built:
        """Each bucket specialised, planned and emitted."""
        parts, stop_after = self.shared.parts, self.bisection.stop_after
        built = build_program(self.exported, self.job, progress, self.observer, stop_after, parts, jobs)
        return replace(built, program=replace(built.program, own_inputs=self.shared.own_inputs))

    def explained(self) -> Explained:
        """What passes and rules did, and left alone."""
        rules = (*self.job.rules, *fusion.registered(), *fusion.RULES)
        return Explained(tuple(self.observer.records), rules)

    def nodes(self) -> int:
        """How many nodes the graphs have now."""
        return sum(len(one.module.graph.nodes) for one in self.exported)

    def summary(self, program: Program, nodes_before: int) -> OfMesh:
        """What its program, as it was written, came to."""
        proofs = [bucket.proof for entry in program.entry_points for bucket in entry.buckets if bucket.proof]
        return OfMesh(
            mesh=mesh_text(self.job.mesh),
            nodes_before=nodes_before,
            nodes_after=self.nodes(),
            buckets=len(proofs),
            arena=program.arena,
            memory=promised(program).peak,
            max_abs_error=max(proof.max_abs_error for proof in proofs),
            units=max(proof.units for proof in proofs),
            padding_runs=sum(len(proof.padding) for proof in proofs),
            shared_out=self.shared_out(),
        )

    def shared_out(self) -> SharedOut | None:
        """What its ranks share out; None for one rank."""
        shared = self.shared
        if not shared.mesh:
            return None
        return SharedOut(mesh_text(shared.mesh), dict(shared.styles), dict(shared.kept), *shared.weights())


def exported_for(
    job: Job, model: torch.nn.Module, bisection: Bisection, jobs: int, seen: Seen | None, keeps: bool
) -> OneMesh:
    """The model, exported as rank 0 of the job's mesh has it. `seen` hears of each stage's graph; `keeps`: what passes
    change, for a report."""
    observer = _observer(job, bisection.max_rewrites, seen, keeps)
    with _shared(model, job) as shared, _in_words_of_ranks(job):
        exported = _exported(shared.model, job, observer, jobs)
    return OneMesh(job, shared, exported, observer, bisection)


def _shared(model: torch.nn.Module, job: Job) -> contextlib.AbstractContextManager[Split]:
    """The model as rank 0 has it, for as long as it is exported."""
    if job.mesh and job.parallel == "model":
        return shares_itself(lambda mesh: _cast(make_model(job, mesh), job), model, job.mesh, job.entries, job.where)
    return contextlib.nullcontext(split(model, job.mesh, job.parallel, job.where))


@contextlib.contextmanager
def _in_words_of_ranks(job: Job) -> Iterator[None]:
    """Where a model that ranks share out cannot be exported, that may be by the way it is shared out."""
    try:
        yield
    except ExportError as error:
        if not job.mesh:
            raise
        raise type(error)(
            f"{error.what}, as ranks share it out",
            where=error.where,
            expected=error.expected,
            got=error.got,
            fix="look at mesh and parallel, and whether the model builds without them",
        ) from error


def _cast(model: torch.nn.Module, job: Job) -> torch.nn.Module:
    return model.eval() if job.model.dtype is None else model.eval().to(dtype(job.model.dtype))


def _exported(model: torch.nn.Module, job: Job, observer: Observer, jobs: int = 1) -> list[Exported]:
    """The graphs of each entry point."""
    found = export_entries(model, job.entries, jobs)
    # Ranks may have buffers of their own, and share one program.
    exported = unified(found, [graph.entry for graph in found], tables=not job.mesh)
    for one, label in zip(exported, labels(exported), strict=True):
        with observer.over(label):
            observer.stage("export", one.module)
    return exported


def labels(exported: Sequence[Exported]) -> list[str]:
    """What each graph is called in logs and dumps: by its entry point, numbered where that has several; "" for an only
    one."""
    if len(exported) == 1:
        return [""]
    entries = [one.entry for one in exported]
    return [
        entry if entries.count(entry) == 1 else f"{entry} {1 + entries[:number].count(entry)}"
        for number, entry in enumerate(entries)
    ]


def _observer(job: Job, max_rewrites: int | None, seen: Seen | None, keeps: bool) -> Observer:
    dump = job.config.debug.graph_dump
    path = dump.path or ("." if dump.type is not None else None)
    folder = Path(path) if path is not None else None
    if folder is not None and len(job.meshes) > 1:
        folder = folder / mesh_name(job.mesh)
    return Observer(job.target, folder, max_rewrites, dump.type == "py", keeps, listener=seen)
