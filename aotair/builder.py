"""The line: from a recipe to an artifact. The only file that knows the order of the stages."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from aotair_runtime.artifact.open import Artifact
from aotair_runtime.errors import AotairError
from aotair_runtime.format.mesh import mesh_text
from aotair_runtime.format.schema import PROGRAM_FILE, WEIGHTS_FILE, Origin, Program
from aotair_runtime.format.torch_names import dtype

from . import fusion
from .debugger.debug import Begun, debug_recipe
from .debugger.finding import Debugged, Rung
from .debugger.ladder import Form, copied
from .debugger.search import Asked as AskedOfDebugger
from .errors import ExportError, ModelError, RecipeError, SizesError, UnsupportedError
from .export.entries import export_entries
from .export.export import export, export_at
from .export.exported import Exported
from .export.identity import unified
from .fingerprint import origin_of
from .lower.bodies import defining_packages
from .model.arguments import in_signatures_order
from .model.hidden_state import refuse_hidden_state
from .model.histories import Beginning
from .model.load import load_model, make_model
from .model.quantize import quantize
from .model.smallest_sizes import with_least_sizes
from .pack import check_written, lay_down, pack, take_along, written_aside
from .parallel.own import shares_itself
from .parallel.split import Split, split
from .passes import pipeline
from .passes.observer import Observer
from .program import Built, build_program, run_bucket_passes
from .promise import promised, refuse_over_budget
from .prove.prove import is_large, prove
from .recipe.config import CUSTOM_PASSES, CompilerConfig
from .recipe.entry import EntryJob
from .recipe.imports import importing_from
from .recipe.job import Job, job_of
from .recipe.read import check_recipe, completed, of_model, parse_recipe, read_recipe
from .recipe.recipe import Recipe
from .report.explain import Explained
from .report.page import pages
from .reuse import built_like
from .share import usable_cores
from .summary import Bisection, Listener, Quantised, SharedOut, Summary


def build(
    recipe: str | Path | dict[str, object] | Recipe | None = None,
    out: str | Path | None = None,
    *,
    model: torch.nn.Module | None = None,
    config: CompilerConfig | None = None,
    post_grad_custom_pre_pass: Callable[..., object] | None = None,
    post_grad_custom_post_pass: Callable[..., object] | None = None,
    listener: Listener | None = None,
    like: str | Path | None = None,
    jobs: int | None = None,
    **parts: object,
) -> Path:
    """Build an artifact and return its path.

    `recipe`: a YAML file, its contents as a dict, or a Recipe. `model`: instead of one, a model that is there already;
    a copy of it is built, and `parts` are the other parts of a recipe, `inputs`, `buckets`, `target` and so on, where
    an input may be a tensor, which says its shape and dtype. `config`: instead of the recipe's. `out`: the directory to
    write, by default `NAME.aotair` in the working directory; an artifact that is there already is replaced at the very
    end.
    `post_grad_custom_pre_pass`, `post_grad_custom_post_pass`: passes of your own,
    `f(gm, example_inputs, config) -> None`, instead of those that the recipe names.
    `like`: an artifact of the same recipe with other weights; its programs and plans are taken as they are, so that a
    loaded model of the one takes the weights of the other (`Model.load_weights`). Weights, proof and golden tensors
    are made anew; where a build might make another program, that is an error.
    `jobs`: how many processes share the work, by default as many as there are cores to use; the artifact is the same.
    Raises a subclass of AotairError, and leaves nothing behind, where the recipe cannot be built.
    """
    asked = _asked(recipe, model, parts)
    if config is not None and not isinstance(config, CompilerConfig):
        raise RecipeError("build: config= is none", expected="a CompilerConfig", got=type(config).__name__)
    given = zip(CUSTOM_PASSES, (post_grad_custom_pre_pass, post_grad_custom_post_pass), strict=True)
    if passes := {option: function for option, function in given if function is not None}:
        config = (asked.recipe.config if config is None else config).model_copy(update=passes)
    asked = replace(asked, config=config, jobs=_jobs(jobs))
    return Path(_build(lambda: asked, out, listener or Listener(), Bisection(), like).artifact)


def build_with_summary(
    recipe: str | Path | dict[str, object] | Recipe,
    out: str | Path | None,
    listener: Listener,
    bisection: Bisection | None = None,
    like: str | Path | None = None,
    jobs: int | None = None,
) -> Summary:
    """Build an artifact as `build` does, and say what it came to."""
    return _build(lambda: replace(_asked(recipe), jobs=_jobs(jobs)), out, listener, bisection or Bisection(), like)


def plan(recipe: str | Path | dict[str, object] | Recipe, listener: Listener | None = None) -> Program:
    """The program that a build of a recipe would write, planned but not proved. Nothing is written.

    Raises a subclass of AotairError where the recipe cannot be built so far.
    """
    with _begun(lambda: _asked(recipe), _Clock(listener or Listener()), Bisection()) as line:
        line.optimise()
        return line.planned().program


def explain(recipe: str | Path | dict[str, object] | Recipe, listener: Listener | None = None) -> Explained:
    """Run the passes over a recipe's model, and say what became of each candidate. Nothing is written.

    Raises a subclass of AotairError where the recipe cannot be built so far.
    """
    with _begun(lambda: _asked(recipe), _Clock(listener or Listener()), Bisection()) as line:
        line.optimise()
        with line.clock.stage("buckets"):
            run_bucket_passes(line.exported, line.job, line.observer)
        return line.explained()


def debug(
    recipe: str | Path | dict[str, object] | Recipe,
    asked: AskedOfDebugger,
    artifact: Artifact | None = None,
    listener: Listener | None = None,
    heard: Callable[[Rung], None] = lambda rung: None,
) -> list[Debugged]:
    """Say where the numbers of a recipe's model go wrong, if they do: at the export, in a pass, in an instruction, on a
    device; of one entry point after another, up to the first that is wrong, or of the one that is asked for.
    `artifact`: one built from the recipe, whose program is looked at. Nothing is written.

    Raises a subclass of AotairError where the recipe cannot be built so far.
    """
    kept: list[tuple[str, Form]] = []

    def keep(stage: str, graph: torch.fx.Graph, label: str) -> None:
        kept.append((label, Form(stage, copied(graph))))

    with _begun(lambda: _asked(recipe), _Clock(listener or Listener()), Bisection(), seen=keep) as line:
        if line.job.mesh:
            raise UnsupportedError(
                "models that ranks share out cannot be debugged so far",
                where=line.job.where,
                got=mesh_text(line.job.mesh),
                fix="leave out the mesh, --set mesh={} --set parallel=auto: the same passes run over the whole model",
            )
        line.optimise()
        labels = enumerate(_labels(line.exported))
        forms = {number: [form for of, form in kept if of == label] for number, label in labels}
        return debug_recipe(Begun(line.job, line.model, line.exported, forms), asked, artifact, heard)


def _build(
    ask: "Callable[[], _Asked]",
    out: str | Path | None,
    listener: Listener,
    bisection: Bisection,
    like: str | Path | None,
) -> Summary:
    with _begun(ask, _Clock(listener), bisection, out, write=True) as line:
        nodes = _nodes(line.exported)
        origin = origin_of(line.exported, line.job, bisection)  # of the graphs before any pass
        if like is None:
            line.optimise()
            built = line.planned()
            built = replace(built, program=replace(built.program, origin=origin))
        else:
            built = line.taken_from(Path(like), origin)
        return line.written(built, nodes)


# ---- what is asked for -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """A recipe, a model that is there already instead of its factory, a config instead of its own, and how many
    processes share the work."""

    recipe: Recipe
    model: torch.nn.Module | None = None
    config: CompilerConfig | None = None
    jobs: int = 1


def _jobs(asked: int | None) -> int:
    if asked is not None and (type(asked) is not int or asked < 1):
        raise RecipeError("build: jobs= is no number of processes", expected="1 or more", got=repr(asked))
    return usable_cores() if asked is None else asked


def _asked(recipe: object, model: torch.nn.Module | None = None, parts: dict[str, object] | None = None) -> _Asked:
    if model is not None and recipe is None:
        return _Asked(of_model(model, parts or {}), model)
    if recipe is None or model is not None or parts:
        given = {"a recipe": recipe is not None, "model=": model is not None} | dict.fromkeys(parts or {}, True)
        raise RecipeError(
            "build: what to build is described twice, or not at all",
            expected="a recipe and nothing beside it, or model= and the other parts of a recipe",
            got=", ".join(name for name, there in given.items() if there) or "neither",
        )
    return _Asked(_as_recipe(recipe))


def _as_recipe(recipe: object) -> Recipe:
    if isinstance(recipe, Recipe):
        recipe = completed(recipe)
        check_recipe(recipe)
        return recipe
    if not isinstance(recipe, (str, Path, dict)):
        raise RecipeError(
            "build: this is no recipe",
            expected="the path of a YAML file, its contents as a dict, or a Recipe",
            got=type(recipe).__name__,
            fix="pass a model as model=",
        )
    return parse_recipe(recipe) if isinstance(recipe, dict) else read_recipe(recipe)


# ---- the line --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _begun(
    ask: Callable[[], _Asked],
    clock: "_Clock",
    bisection: Bisection,
    out: str | Path | None = None,
    write: bool = False,
    seen: Callable[[str, torch.fx.Graph, str], None] | None = None,
) -> Iterator["_Line"]:
    """The line, as far as to the exported graphs. What the recipe's folder holds can be imported within, and what is
    written to `_Place.folder` becomes the artifact at its end; `seen` hears of each stage's graph."""
    with clock.stage("recipe"):
        asked = ask()
    target = Path(out) if out is not None else Path(f"{asked.recipe.name}.aotair")
    with contextlib.ExitStack() as stack:
        stack.enter_context(importing_from(asked.recipe.folder))
        if torch.get_default_device().type != "cpu":  # the caller's, and a build has no device but the CPU
            stack.enter_context(torch.device("cpu"))
        place = _Place(target, stack.enter_context(written_aside(target))) if write else None
        with clock.stage("model"):
            job = job_of(asked.recipe, given=asked.model, config=asked.config)
            model = load_model(job)
            quantised = quantize(model, job)
        with clock.stage("export"):
            job = _checked(model, job)
            observer = _observer(job, bisection.max_rewrites, seen, keeps=write)
            with _shared(model, job) as shared, _in_words_of_ranks(job):
                exported = _exported(shared.model, job, observer, asked.jobs)
        yield _Line(job, model, quantised, shared, exported, observer, bisection, clock, place, asked.jobs)


def _shared(model: torch.nn.Module, job: Job) -> contextlib.AbstractContextManager[Split]:
    """The model as rank 0 has it, for as long as it is exported."""
    if job.mesh and job.parallel == "model":
        return shares_itself(lambda mesh: _cast(make_model(job, mesh), job), model, job.mesh, job.where)
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


@dataclass(frozen=True)
class _Place:
    """Where the artifact will be, and the folder in which it is written until it is whole."""

    target: Path
    folder: Path


@dataclass
class _Line:
    """The stages after the export, each of which takes what those before have made."""

    job: Job
    model: torch.nn.Module
    quantised: Quantised | None
    shared: Split
    exported: Sequence[Exported]
    observer: Observer
    bisection: Bisection
    clock: "_Clock"
    place: _Place | None
    jobs: int

    def optimise(self) -> None:
        """All passes, over each graph in place."""
        with self.clock.stage("passes"):
            for one, label in zip(self.exported, _labels(self.exported), strict=True):
                with self.observer.over(label):
                    pipeline.apply(
                        one.module, self.job.config, self.observer, self.bisection.stop_after, self.job.rules
                    )

    def planned(self) -> Built:
        """Each bucket specialised, planned and emitted."""
        with self.clock.stage("buckets"):
            return build_program(
                self.exported,
                self.job,
                self.clock.listener.bucket,
                self.observer,
                self.bisection.stop_after,
                self.shared.parts,
            )

    def taken_from(self, path: Path, origin: Origin) -> Built:
        """Instead: another artifact's program, if it is of this origin, with this model's weights."""
        with self.clock.stage("like"):
            if self.job.mesh:
                raise RecipeError(
                    "--like: programs for several ranks are made anew",
                    where=self.job.where,
                    fix="build without --like, or give a loaded model the checkpoint: Model.load_weights(PATH)",
                )
            return built_like(path, self.exported, self.job, origin)

    def explained(self) -> Explained:
        """What passes and rules did, and left alone."""
        rules = (*self.job.rules, *fusion.registered(), *fusion.RULES)
        return Explained(tuple(self.observer.records), rules)

    def written(self, built: Built, nodes_before: int) -> Summary:
        """Proved, packed, and checked as a node would."""
        assert self.place is not None
        folder = self.place.folder
        refuse_over_budget(built.program, self.job.needs, self.job.where)
        counts = self.explained().counts()
        with self.clock.stage("prove"):
            artifact, stages = lay_down(built, folder), self.shared.stages
            proved = prove(artifact, self.model, self.job, self.clock.listener.bucket, self.jobs, stages)
        with self.clock.stage("pack"):
            report = pages(proved.program, built, self.explained(), self.quantised)
            program = pack(proved, report, folder, take_along(self.job, folder), built.debug)
        with self.clock.stage("check"):
            jobs = 1 if is_large(self.model) else self.jobs
            check_written(folder, self.job.target.allowed, self.job.where, jobs)
        return self._summary(self.place, program, counts, nodes_before)

    def _summary(
        self, place: _Place, program: Program, counts: dict[str, tuple[int, int]], nodes_before: int
    ) -> Summary:
        proofs = [bucket.proof for entry in program.entry_points for bucket in entry.buckets if bucket.proof]
        return Summary(
            artifact=str(place.target),
            nodes_before=nodes_before,
            nodes_after=_nodes(self.exported),
            buckets=len(proofs),
            arena=program.arena,
            weights=(place.folder / WEIGHTS_FILE).stat().st_size,
            program=(place.folder / PROGRAM_FILE).stat().st_size,
            max_abs_error=max(proof.max_abs_error for proof in proofs),
            units=max(proof.units for proof in proofs),
            padding_runs=sum(len(proof.padding) for proof in proofs),
            sampled=self.job.sampled,
            seconds=self.clock.seconds,
            rewrites=self.observer.rewrites(),
            quantised=self.quantised,
            misses={name: left for name, (_, left) in counts.items() if left},
            graphs=[one.why for one in self.exported if one.why],
            memory=promised(program).peak,
            budget=self.job.needs.memory_budget,
            packages=defining_packages(op.name for op in program.ops),
            shared_out=_shared_out(self.shared),
        )


def _shared_out(shared: Split) -> SharedOut | None:
    if not shared.mesh:
        return None
    return SharedOut(mesh_text(shared.mesh), dict(shared.styles), dict(shared.kept), *shared.weights())


def _checked(model: torch.nn.Module, job: Job) -> Job:
    """The job, with inputs in the order of the methods' arguments, and with the smallest sizes that the model takes.
    Raises what is wrong with its calls."""
    for one in job.entries:
        names = in_signatures_order(getattr(model, one.method), list(one.inputs))
        job = job.with_entry(replace(one, inputs={name: one.inputs[name] for name in names}))
    beginning = Beginning(model, job)
    for one in job.entries:
        try:
            refuse_hidden_state(model, one)
        except ModelError:
            _export_for_its_reason(model, one)
            raise
    for one in job.entries:
        job = job.with_entry(with_least_sizes(model, one))
    beginning.refuse_dependence()
    return job


def _export_for_its_reason(model: torch.nn.Module, one: EntryJob) -> None:
    """Raises what an export says of a model whose calls fail or differ, with the line, where it says anything."""
    try:
        export(model, one)
    except SizesError as sizes:
        try:
            export_at(model, one, one.bucket_sizes()[0])
        except UnsupportedError:
            raise
        except ExportError:
            raise sizes from None


def _exported(model: torch.nn.Module, job: Job, observer: Observer, jobs: int = 1) -> list[Exported]:
    """The graphs of each entry point."""
    found = export_entries(model, job.entries, jobs)
    # Ranks may have buffers of their own, and share one program.
    exported = unified(found, [graph.entry for graph in found], tables=not job.mesh)
    for one, label in zip(exported, _labels(exported), strict=True):
        with observer.over(label):
            observer.stage("export", one.module)
    return exported


def _labels(exported: Sequence[Exported]) -> list[str]:
    """What each graph is called in logs and dumps: by its entry point, numbered where that has several; "" for an only
    one."""
    if len(exported) == 1:
        return [""]
    entries = [one.entry for one in exported]
    return [
        entry if entries.count(entry) == 1 else f"{entry} {1 + entries[:number].count(entry)}"
        for number, entry in enumerate(entries)
    ]


def _nodes(exported: Sequence[Exported]) -> int:
    return sum(len(one.module.graph.nodes) for one in exported)


def _observer(
    job: Job, max_rewrites: int | None, seen: Callable[[str, torch.fx.Graph, str], None] | None, keeps: bool
) -> Observer:
    dump = job.config.debug.graph_dump
    path = dump.path or ("." if dump.type is not None else None)
    folder = Path(path) if path is not None else None
    return Observer(job.target, folder, max_rewrites, dump.type == "py", keeps, listener=seen)


class _Clock:
    def __init__(self, listener: Listener):
        self.seconds: dict[str, float] = {}
        self.listener = listener

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.listener.stage(name)
        start = time.perf_counter()
        try:
            yield
        except AotairError as error:
            error.stage = name
            raise
        self.seconds[name] = time.perf_counter() - start
