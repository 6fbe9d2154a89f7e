"""The line: from a recipe to an artifact. The only file that knows the order of the stages."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from aotair_runtime.artifact.open import open_artifact
from aotair_runtime.errors import AotairError
from aotair_runtime.format.schema import PROGRAM_FILE, WEIGHTS_FILE, Program
from aotair_runtime.weights.golden import replay_golden

from . import fusion
from .errors import InternalError, ModelError, ProofError, RecipeError
from .export.export import Exported, export
from .export.identity import unified
from .export.variants import export_buckets
from .fingerprint import origin_of
from .lower.bodies import defining_packages
from .model.arguments import in_signatures_order
from .model.hidden_state import refuse_hidden_state
from .model.histories import Beginning
from .model.load import load_model, load_rules, with_functions
from .model.quantize import quantize
from .model.smallest_sizes import with_least_sizes
from .pack import lay_down, pack, written_aside
from .passes import pipeline
from .passes.observer import Observer
from .program import build_program
from .promise import check_budget, promised
from .prove.prove import on_host, prove
from .recipe.config import CompilerConfig
from .recipe.imports import importing_from
from .recipe.recipe import Recipe, of_model, parse_recipe, read_recipe
from .report.explain import Explained
from .report.page import page
from .reuse import built_like
from .summary import Bisection, Listener, Summary
from .target.target import Target


def build(
    recipe: str | Path | dict | Recipe | None = None,
    out: str | Path | None = None,
    *,
    model: torch.nn.Module | None = None,
    config: CompilerConfig | None = None,
    post_grad_custom_pre_pass: Callable | None = None,
    post_grad_custom_post_pass: Callable | None = None,
    listener: Listener | None = None,
    like: str | Path | None = None,
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
    Raises a subclass of AotairError, and leaves nothing behind, where the recipe cannot be built.
    """
    recipe = _described(recipe, model, parts)
    if config is not None:
        if not isinstance(config, CompilerConfig):
            raise RecipeError("build: config= is none", expected="a CompilerConfig", got=type(config).__name__)
        recipe = recipe.with_config(config)
    for option, given in (
        ("post_grad_custom_pre_pass", post_grad_custom_pre_pass),
        ("post_grad_custom_post_pass", post_grad_custom_post_pass),
    ):
        if given is not None:
            config = recipe.config.model_copy(update={option: given})
            recipe = recipe.with_config(config)
    return Path(build_with_summary(recipe, out, listener or Listener(), like=like).artifact)


def build_with_summary(
    recipe: str | Path | dict | Recipe,
    out: str | Path | None,
    listener: Listener,
    bisection: Bisection | None = None,
    like: str | Path | None = None,
) -> Summary:
    clock, bisection = _Clock(listener), bisection or Bisection()
    with clock.stage("recipe"):
        recipe = _as_recipe(recipe)
        target = Path(out) if out is not None else Path(f"{recipe.name}.aotair")
    with importing_from(recipe.folder), written_aside(target) as folder:
        observer = _observer(recipe, bisection.max_rewrites)
        with clock.stage("model"):
            model, rules = load_model(recipe), load_rules(recipe)
            quantised = quantize(model, recipe)
        with clock.stage("export"):
            recipe = _checked(model, recipe)
            exported = _exported(model, recipe, observer)
            nodes_before = _nodes(exported)
            config = with_functions(recipe)
            origin = origin_of(exported, recipe.with_config(config), rules, bisection)
        if like is not None:
            with clock.stage("like"):
                built = built_like(Path(like), exported, recipe, origin)
        else:
            with clock.stage("passes"):
                _apply_passes(exported, recipe, observer, rules, bisection.stop_after)
            with clock.stage("buckets"):
                built = build_program(exported, recipe, listener.bucket, observer, bisection.stop_after)
                built = replace(built, program=replace(built.program, origin=origin))
        check_budget(built.program, recipe)
        nodes_after = _nodes(exported)
        explained = _explained(observer, rules)
        with clock.stage("prove"):
            proved = prove(lay_down(built, folder), model, recipe, listener.bucket)
        with clock.stage("pack"):
            program = pack(proved, page(proved.program, explained.counts(), built.pictures), folder)
        with clock.stage("check"):
            _check_written(folder, recipe.where)
        proofs = [bucket.proof for entry in program.entry_points for bucket in entry.buckets]
        summary = Summary(
            artifact=str(target),
            nodes_before=nodes_before,
            nodes_after=nodes_after,
            buckets=len(proofs),
            arena=program.arena,
            weights=(folder / WEIGHTS_FILE).stat().st_size,
            program=(folder / PROGRAM_FILE).stat().st_size,
            max_abs_error=max(proof.max_abs_error for proof in proofs),
            padding_runs=sum(len(proof.padding) for proof in proofs),
            seconds=clock.seconds,
            rewrites=observer.rewrites(),
            quantised=None if quantised is None else asdict(quantised),
            misses={name: left for name, (_, left) in explained.counts().items() if left},
            graphs=[one.why for one in exported if one.why],
            memory=promised(program).peak,
            budget=recipe.target.memory_budget,
            packages=defining_packages(op.name for op in program.ops),
        )
    return summary


def plan(recipe: str | Path | dict | Recipe, listener: Listener | None = None) -> Program:
    """The program that a build of a recipe would write, planned but not proved. Nothing is written.

    Raises a subclass of AotairError where the recipe cannot be built so far.
    """
    listener = listener or Listener()
    clock = _Clock(listener)
    done = _optimised(recipe, clock)
    with clock.stage("buckets"):
        return build_program(done.exported, done.recipe, listener.bucket, done.observer).program


def explain(recipe: str | Path | dict | Recipe, listener: Listener | None = None) -> Explained:
    """Run the passes over a recipe's model, and say what became of each candidate. Nothing is written.

    Raises a subclass of AotairError where the recipe cannot be built so far.
    """
    done = _optimised(recipe, _Clock(listener or Listener()))
    return _explained(done.observer, done.rules)


@dataclass(frozen=True)
class _Optimised:
    """A recipe's graphs after all passes, and who watched them."""

    recipe: Recipe
    exported: Sequence[Exported]
    observer: Observer
    rules: Sequence[fusion.Rule]


def _optimised(recipe: str | Path | dict | Recipe, clock: "_Clock") -> _Optimised:
    with clock.stage("recipe"):
        recipe = _as_recipe(recipe)
        observer = _observer(recipe)
    with importing_from(recipe.folder):
        with clock.stage("model"):
            model, rules = load_model(recipe), load_rules(recipe)
            quantize(model, recipe)
        with clock.stage("export"):
            recipe = _checked(model, recipe)
            exported = _exported(model, recipe, observer)
        with clock.stage("passes"):
            _apply_passes(exported, recipe, observer, rules)
    return _Optimised(recipe, exported, observer, rules)


def _checked(model: torch.nn.Module, recipe: Recipe) -> Recipe:
    """The recipe, with inputs in the order of the methods' arguments, and with the smallest sizes that the model takes.
    Raises what is wrong with its calls."""
    for one in recipe.entries():
        names = in_signatures_order(getattr(model, one.method), list(one.inputs))
        recipe = recipe.with_inputs(one.entry, {name: one.inputs[name] for name in names})
    beginning = Beginning(model, recipe)
    for one in recipe.entries():
        try:
            refuse_hidden_state(model, one)
        except ModelError:
            export(model, one)  # where it fails too, it says better why
            raise
    recipe = with_least_sizes(model, recipe)
    beginning.refuse_dependence()
    return recipe


def _exported(model: torch.nn.Module, recipe: Recipe, observer: Observer) -> list[Exported]:
    """The graphs of each entry point."""
    entries = recipe.entries()
    found = [graph for one in entries for graph in export_buckets(model, one)]
    exported = unified(found, [graph.entry for graph in found])
    for one, label in zip(exported, _labels(exported), strict=True):
        with observer.over(label):
            observer.stage("export", one.module)
    return exported


def _apply_passes(
    exported: Sequence[Exported],
    recipe: Recipe,
    observer: Observer,
    rules: Sequence[fusion.Rule],
    stop_after: str | None = None,
) -> None:
    config = with_functions(recipe)
    for one, label in zip(exported, _labels(exported), strict=True):
        with observer.over(label):
            pipeline.apply(one.module, config, observer, stop_after, rules)


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


def _explained(observer: Observer, rules: Sequence[fusion.Rule]) -> Explained:
    return Explained(tuple(observer.records), (*rules, *fusion.registered(), *fusion.RULES))


def _described(recipe: object, model: torch.nn.Module | None, parts: dict[str, object]) -> Recipe:
    """The recipe, or that of a model that is there already."""
    if model is not None and recipe is None:
        return of_model(model, parts)
    if recipe is None or model is not None or parts:
        given = {"a recipe": recipe is not None, "model=": model is not None} | dict.fromkeys(parts, True)
        raise RecipeError(
            "build: what to build is described twice, or not at all",
            expected="a recipe and nothing beside it, or model= and the other parts of a recipe",
            got=", ".join(name for name, there in given.items() if there) or "neither",
        )
    return _as_recipe(recipe)


def _as_recipe(recipe: str | Path | dict | Recipe) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, (str, Path, dict)):
        raise RecipeError(
            "build: this is no recipe", expected="the path of a YAML file, its contents as a dict, or a Recipe",
            got=type(recipe).__name__, fix="pass a model as model=",
        )  # fmt: skip
    return parse_recipe(recipe) if isinstance(recipe, dict) else read_recipe(recipe)


def _observer(recipe: Recipe, max_rewrites: int | None = None) -> Observer:
    dump = recipe.config.debug.graph_dump
    path = dump.path or ("." if dump.type is not None else None)
    folder = Path(path) if path is not None else None
    return Observer(Target(recipe.target.device), folder, max_rewrites, dump.type == "py")


# How a node may load an artifact, where that changes the way of a call. The proof has its inputs and outputs copied.
_WAYS = (
    {"clone_input": True, "enable_output_clone": False},
    {"clone_input": False, "enable_output_clone": False, "disable_mempool_reuse_in_same_fx": True},
    {"clone_input": False, "enable_output_clone": True},
)


def _check_written(folder: Path, where: str) -> None:
    """What lies on disk loads and answers, however a node loads it. Raises ProofError."""
    artifact = open_artifact(folder)
    for options in _WAYS:
        chosen = ", ".join(f"{option}={value}" for option, value in options.items())
        try:
            with on_host(artifact, **options) as model:
                wrong = [result for result in replay_golden(model) if not result.within]
        except AotairError as error:
            raise ProofError(
                f"the written artifact cannot be used with {chosen}: {error.what}", where=error.where or where,
                expected=error.expected or "an artifact that loads with each option", got=error.got, fix=error.fix,
            ) from error  # fmt: skip
        except Exception as error:
            raise InternalError(f"the written artifact fails with {chosen}: {error}") from error
        if wrong:
            raise ProofError(
                f"the written artifact answers differently with {chosen}",
                where=f"{where}: {wrong[0].entry}, bucket {wrong[0].bucket}",
                expected="the original model's outputs",
                got=f"an error of {wrong[0].max_abs_error:.3g}",
            )


class _Clock:
    def __init__(self, listener: Listener):
        self.seconds: dict[str, float] = {}
        self._listener = listener

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._listener.stage(name)
        start = time.perf_counter()
        try:
            yield
        except AotairError as error:
            error.stage = name
            raise
        self.seconds[name] = time.perf_counter() - start
