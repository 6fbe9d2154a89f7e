"""The line: from a recipe to an artifact. The only file that knows the order of the stages."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from aotair_runtime.artifact.asked import Asked
from aotair_runtime.artifact.open import ONE_RANK, Artifact
from aotair_runtime.errors import AotairError
from aotair_runtime.format.mesh import mesh_text, meshes_text
from aotair_runtime.format.schema import PROGRAM_FILE, WEIGHTS_FILE, Origin, Program

from .debugger.debug import Begun, debug_recipe
from .debugger.finding import Debugged, Rung
from .debugger.ladder import Form, copied
from .debugger.search import Asked as AskedOfDebugger
from .errors import ExportError, ModelError, RecipeError, SizesError, UnsupportedError
from .export.export import export, export_at
from .fingerprint import origin_of
from .lower.bodies import defining_packages
from .model.arguments import in_signatures_order
from .model.hidden_state import refuse_hidden_state
from .model.histories import Beginning
from .model.load import load_model
from .model.quantize import quantize
from .model.smallest_sizes import with_least_sizes
from .one_mesh import OneMesh, Seen, exported_for, labels
from .pack import read_back, take_along, written_aside
from .program import Built
from .promise import refuse_over_budget
from .prove.prove import Proved, is_large, prove
from .recipe.config import CUSTOM_PASSES, CompilerConfig
from .recipe.entry import EntryJob
from .recipe.imports import importing_from
from .recipe.job import Job, job_of
from .recipe.read import check_recipe, completed, of_model, parse_recipe, read_recipe
from .recipe.recipe import Recipe
from .report.explain import Explained
from .report.page import pages_of_all
from .reuse import built_like
from .share import DismissedError, Team, in_team, leave_team, told, usable_cores
from .summary import Bisection, Listener, Quantised, Summary
from .united import check_all, lay_down_all, pack_all


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


def build_in_team(
    recipe: Recipe, out: str | Path, listener: Listener, team: Team, jobs: int | None = None
) -> Summary | None:
    """Build an artifact with processes of other machines, each of which calls this with its place in the team: the
    first writes what it would write alone, and says what it came to; the others share exports, plans and proofs, and
    give None. Relative paths and what is imported have to mean the same to all of them, and `out` has to be a place
    that they all see. Raises as `build` does; a process that is lost leaves the rest to the first."""
    with in_team(team):
        if team.number == 0:
            return build_with_summary(recipe, out, listener, jobs=jobs)
        with contextlib.suppress(DismissedError):
            _share_build(recipe, jobs)
    return None


def _share_build(recipe: Recipe, jobs: int | None) -> None:
    with _begun(lambda: replace(_asked(recipe), jobs=_jobs(jobs)), _Clock(Listener()), Bisection()) as line:
        line.optimise()
        line.planned()
        line.share_proofs()


def plan(recipe: str | Path | dict[str, object] | Recipe, listener: Listener | None = None) -> Program:
    """The program that a build of a recipe for one mesh would write, planned but not proved. Nothing is written.

    Raises a subclass of AotairError where the recipe cannot be built so far.
    """
    with _begun(lambda: _asked(recipe), _Clock(listener or Listener()), Bisection()) as line:
        line.only("plan")
        line.optimise()
        return line.planned()[0].program


def plans(recipe: str | Path | dict[str, object] | Recipe, listener: Listener | None = None) -> list[Program]:
    """The same for each mesh of the recipe, in their order."""
    with _begun(lambda: _asked(recipe), _Clock(listener or Listener()), Bisection()) as line:
        line.optimise()
        return [built.program for built in line.planned()]


def explain(recipe: str | Path | dict[str, object] | Recipe, listener: Listener | None = None) -> Explained:
    """Run the passes over a recipe's model, and say what became of each candidate. Nothing is written.

    Raises a subclass of AotairError where the recipe cannot be built so far.
    """
    with _begun(lambda: _asked(recipe), _Clock(listener or Listener()), Bisection()) as line:
        only = line.only("explain")
        line.optimise()
        with line.clock.stage("buckets"):
            only.run_bucket_passes()
        return only.explained()


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
        only = line.only("debug")
        if only.job.mesh:
            raise UnsupportedError(
                "models that ranks share out cannot be debugged so far",
                where=only.job.where,
                got=mesh_text(only.job.mesh),
                fix="leave out the mesh, --set mesh={} --set parallel=auto: the same passes run over the whole model",
            )
        line.optimise()
        numbered = enumerate(labels(only.exported))
        forms = {number: [form for of, form in kept if of == label] for number, label in numbered}
        return debug_recipe(Begun(only.job, line.model, only.exported, forms), asked, artifact, heard)


def _build(
    ask: "Callable[[], _Asked]",
    out: str | Path | None,
    listener: Listener,
    bisection: Bisection,
    like: str | Path | None,
) -> Summary:
    with _begun(ask, _Clock(listener), bisection, out, write=True) as line:
        nodes = [one.nodes() for one in line.meshes]
        origins = [origin_of(one.exported, one.job, bisection) for one in line.meshes]  # of the graphs before any pass
        if like is None:
            line.optimise()
            built = [
                replace(one, program=replace(one.program, origin=origin))
                for one, origin in zip(line.planned(), origins, strict=True)
            ]
        else:
            built = [line.taken_from(Path(like), origins[0])]
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
    seen: Seen | None = None,
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
            meshes = [exported_for(one, model, bisection, asked.jobs, seen, write) for one in job.for_each_mesh()]
        yield _Line(job, model, quantised, meshes, clock, place, asked.jobs)


@dataclass(frozen=True)
class _Place:
    """Where the artifact will be, and the folder in which it is written until it is whole."""

    target: Path
    folder: Path


@dataclass
class _Line:
    """The stages after the export, each of which takes what those before have made, for one mesh after the other."""

    job: Job
    model: torch.nn.Module
    quantised: Quantised | None
    meshes: Sequence[OneMesh]
    clock: "_Clock"
    place: _Place | None
    jobs: int

    def only(self, command: str) -> OneMesh:
        """The only mesh. Raises RecipeError where there are several."""
        if len(self.meshes) > 1:
            raise RecipeError(
                f"mesh: {command} looks at one mesh at a time",
                where=self.job.where,
                expected="one mesh",
                got=meshes_text(self.job.meshes),
                fix="choose one: --set 'mesh={tp: 2}'; for one rank --set mesh={} --set parallel=auto",
            )
        return self.meshes[0]

    def optimise(self) -> None:
        """All passes, over each graph in place."""
        with self.clock.stage("passes"):
            for one in self.meshes:
                one.optimise()

    def planned(self) -> list[Built]:
        """Each bucket specialised, planned and emitted."""
        with self.clock.stage("buckets"):
            return [one.planned(self._progress(number), self.jobs) for number, one in enumerate(self.meshes)]

    def _progress(self, number: int) -> Callable[[int, int], None]:
        """Tells the listener of buckets that are done for the mesh of that number, those of all meshes counted."""

        def tell(done: int, total: int) -> None:
            self.clock.listener.bucket(number * total + done, len(self.meshes) * total)

        return tell

    def taken_from(self, path: Path, origin: Origin) -> Built:
        """Instead: another artifact's program, if it is of this origin, with this model's weights."""
        with self.clock.stage("like"):
            if any(self.job.meshes):
                raise RecipeError(
                    "--like: programs for several ranks are made anew",
                    where=self.job.where,
                    fix="build without --like, or give a loaded model the checkpoint: Model.load_weights(PATH)",
                )
            return built_like(path, self.meshes[0].exported, self.job, origin)

    def written(self, built: Sequence[Built], nodes_before: Sequence[int]) -> Summary:
        """Proved, packed, and checked as a node would."""
        assert self.place is not None
        folder, where = self.place.folder, self.job.where
        for one in built:
            refuse_over_budget(one.program, self.job.needs, where)
        with self.clock.stage("prove"):
            artifacts = lay_down_all(built, folder)
            told(str(folder.absolute()))
            proved = [self._proved(number, artifact) for number, artifact in enumerate(artifacts)]
            leave_team()
        with self.clock.stage("pack"):
            explained = [one.explained() for one in self.meshes]
            report = pages_of_all([one.program for one in proved], built, explained, self.quantised)
            debug = [one.debug for one in built]
            programs = pack_all(proved, report, folder, take_along(self.job, folder), debug)
        with self.clock.stage("check"):
            jobs = 1 if is_large(self.model) else self.jobs
            check_all(folder, programs, self.job.target.allowed, where, jobs)
        return self._summary(self.place, programs, nodes_before)

    def share_proofs(self) -> None:
        """The proofs of what another process of the team has written."""
        folder = Path(told(""))
        for number, one in enumerate(self.meshes):
            asked = Asked(one.job.mesh) if len(self.meshes) > 1 else ONE_RANK
            self._proved(number, read_back(folder, asked))

    def _proved(self, number: int, artifact: Artifact) -> Proved:
        one = self.meshes[number]
        return prove(artifact, self.model, one.job, self._progress(number), self.jobs, one.shared.stages)

    def _summary(self, place: _Place, programs: Sequence[Program], nodes_before: Sequence[int]) -> Summary:
        of_each = [
            one.summary(program, before)
            for one, program, before in zip(self.meshes, programs, nodes_before, strict=True)
        ]
        rewrites, misses = Counter[str](), Counter[str]()
        for one in self.meshes:
            rewrites.update(one.observer.rewrites())
            misses.update({name: left for name, (_, left) in one.explained().counts().items() if left})
        return Summary(
            artifact=str(place.target),
            nodes_before=sum(nodes_before),
            nodes_after=sum(one.nodes_after for one in of_each),
            buckets=sum(one.buckets for one in of_each),
            arena=max(program.arena for program in programs),
            weights=(place.folder / WEIGHTS_FILE).stat().st_size,
            program=(place.folder / PROGRAM_FILE).stat().st_size,
            max_abs_error=max(one.max_abs_error for one in of_each),
            units=max(one.units for one in of_each),
            padding_runs=sum(one.padding_runs for one in of_each),
            sampled=self.job.sampled,
            seconds=self.clock.seconds,
            rewrites=dict(rewrites),
            quantised=self.quantised,
            misses=dict(misses),
            graphs=[graph.why for one in self.meshes for graph in one.exported if graph.why],
            memory=max(one.memory for one in of_each),
            budget=self.job.needs.memory_budget,
            packages=defining_packages(op.name for program in programs for op in program.ops),
            shared_out=self.meshes[0].shared_out() if len(of_each) == 1 else None,
            meshes=of_each if len(of_each) > 1 else [],
        )


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
