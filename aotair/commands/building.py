"""The commands that read a recipe: they need the builder's packages, which each imports when it runs."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aotair_runtime.format.schema import Program

from .echo import echo
from .options import ALLOW, ALLOW_OP, JSON, MESH, SET, heading, programs_in
from .several import build_all

if TYPE_CHECKING:
    from ..recipe.recipe import Recipe


@click.command()
@click.argument("recipes", metavar="RECIPE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Directory to write  [default: NAME.aotair]")
@SET
@ALLOW
@ALLOW_OP
@click.option(
    "--dump-graph",
    type=click.Path(path_type=Path),
    help="Write the graph after each stage into this directory.",
)
@click.option(
    "--stop-after",
    metavar="PASS",
    help="Run no pass after the last run of this one, or with PASS:2 after its second. Passes for buckets come last.",
)
@click.option(
    "--max-rewrites", type=click.IntRange(min=0), metavar="N", help="Let the passes make at most so many rewrites."
)
@click.option(
    "--like",
    metavar="ARTIFACT",
    type=click.Path(path_type=Path),
    help="Take the programs of this artifact, built from the recipe with other weights.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Share the work out to so many processes; the artifact is the same.  [default: one for each usable core]",
)
@click.option(
    "--on", type=click.Choice(["ray"]), help="Build all recipes at the same time, by the workers of a Ray cluster."
)
@JSON
def build(
    recipes: tuple[Path, ...],
    out: Path | None,
    changes: tuple[str, ...],
    namespaces: tuple[str, ...],
    ops: tuple[str, ...],
    dump_graph: Path | None,
    stop_after: str | None,
    max_rewrites: int | None,
    like: Path | None,
    jobs: int | None,
    on: str | None,
    as_json: bool,
) -> None:
    """Build each RECIPE into an artifact, and prove it against the original model."""
    from ..builder import build_with_summary
    from ..report.progress import Progress, summary_table
    from ..summary import Bisection

    parsed = [_read(recipe, changes, namespaces, ops) for recipe in recipes]
    alone: dict[str, object] = {"--out": out, "--dump-graph": dump_graph, "--stop-after": stop_after}
    alone |= {"--max-rewrites": max_rewrites, "--like": like}
    if on is not None or len(recipes) > 1:
        if given := [name for name, value in alone.items() if value is not None]:
            raise click.UsageError(f"{', '.join(given)}: for one recipe, and not with --on")
        build_all(recipes, parsed, jobs, on, as_json)
        return
    if dump_graph is not None:
        parsed[0] = parsed[0].model_copy(update={"config": parsed[0].config.dumping_into(dump_graph)})
    with Progress(quiet=as_json) as progress:
        summary = build_with_summary(parsed[0], out, progress, Bisection(stop_after, max_rewrites), like, jobs)
    echo(json.dumps(summary.as_dict(), indent=2) if as_json else summary_table(summary))


def _read(recipe: Path, changes: tuple[str, ...], namespaces: tuple[str, ...], ops: tuple[str, ...]) -> "Recipe":
    """The recipe with what the command line changes."""
    from ..recipe.read import read_recipe

    parsed = read_recipe(recipe, changes)
    more = {"allow_namespaces": namespaces, "allow_ops": ops}
    allowed = {name: [*dict.fromkeys((*getattr(parsed.target, name), *given))] for name, given in more.items()}
    return parsed.model_copy(update={"target": parsed.target.model_copy(update=allowed)})


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--rule", metavar="NAME", help="Only this fusion rule, or this pass.")
@click.option(
    "--explore",
    type=(click.Path(path_type=Path), click.Path(path_type=Path)),
    metavar="ARTIFACT FILE",
    help="Write what the rules left alone to FILE too, for Model Explorer to lay over the graphs of ARTIFACT.",
)
@SET
@JSON
def explain(
    recipe: Path, rule: str | None, explore: tuple[Path, Path] | None, changes: tuple[str, ...], as_json: bool
) -> None:
    """Say what each fusion rule did to the model of RECIPE, and why it left near matches alone."""
    from ..builder import explain as explained
    from ..recipe.read import read_recipe

    found = explained(read_recipe(recipe, changes))
    if explore is not None:
        from ..disk.place import new_file
        from ..explore.misses import misses
        from ..explore.numbers import read

        with new_file(explore[1]) as aside:
            aside.write_text(misses(found, *read(explore[0])), encoding="utf-8")
    echo(json.dumps(found.as_dict(rule), indent=2) if as_json else found.text(rule))


@click.command()
@click.argument("what", metavar="[RECIPE_OR_ARTIFACT]", required=False, type=click.Path(path_type=Path))
@click.option("--intervals", "file", type=click.Path(path_type=Path), help="Plan a CSV file: id,lower,upper,size.")
@click.option("--alignment", default=1, show_default=True, help="With --intervals: bytes that divide every offset.")
@click.option(
    "--seconds",
    default=10.0,
    show_default=True,
    help="With --intervals: work for the searches, counted, in about so many seconds.",
)
@MESH
@SET
@JSON
def plan(
    what: Path | None,
    file: Path | None,
    alignment: int,
    seconds: float,
    mesh: dict[str, int] | None,
    changes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print what memory an artifact takes, or a recipe's will: by purpose, by bucket, and beside the plans; for each of
    its meshes, or for --mesh.

    With --intervals, plan those of a file in MiniMalloc's format (upper excluded): height, lower bound, gap, offsets.
    """
    if (what is None) == (file is None):
        raise click.UsageError("give a recipe, an artifact or --intervals FILE.csv, one of them")
    if file is not None:
        from ..tools.intervals import planned

        found = planned(file, alignment, seconds)
        echo(json.dumps(found.as_dict(), indent=2) if as_json else found.text())
        return
    from ..promise import promised
    from ..report.memory import memory_dict, memory_text

    assert what is not None
    programs, refuse_too_much = _programs(what, changes, mesh, as_json)
    promises = [(program, promised(program)) for program in programs]
    if as_json:
        dicts = [memory_dict(*one) for one in promises]
        echo(json.dumps(dicts if len(dicts) > 1 else dicts[0], indent=2))
    else:
        texts = [memory_text(*one) for one in promises]
        pairs = zip(programs, texts, strict=True)
        echo("\n\n".join(texts if len(texts) == 1 else [f"{heading(program)}\n{text}" for program, text in pairs]))
    refuse_too_much()


def _programs(
    what: Path, changes: tuple[str, ...], mesh: dict[str, int] | None, quiet: bool
) -> tuple[Sequence[Program], Callable[[], None]]:
    """The programs that were or would be built, for all meshes or for one, and what refuses them where their recipe
    gives them less memory."""
    if what.is_dir():
        if changes:
            raise click.UsageError("--set changes a recipe, and this is an artifact")
        return programs_in(what, mesh), lambda: None
    from aotair_runtime.artifact.asked import asked_for

    from ..builder import plans
    from ..promise import refuse_over_budget
    from ..recipe.read import read_recipe
    from ..report.progress import Progress

    recipe = read_recipe(what, changes)
    with Progress(quiet=quiet) as progress:
        programs = plans(recipe, progress)
    if mesh is not None:
        programs = [programs[asked_for(mesh).number([program.mesh for program in programs], recipe.where)]]

    def refuse() -> None:
        for program in programs:
            refuse_over_budget(program, recipe.target, recipe.where)

    return programs, refuse


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--recipe", type=click.Path(path_type=Path), required=True, help="The recipe whose buckets to choose.")
@click.option("--entry", help="The entry point, in a recipe of several.")
@click.option("--most", type=click.IntRange(1, 1024), default=16, show_default=True, help="Buckets at the most.")
@click.option("--captures", type=click.IntRange(1), metavar="N", help="Captures that the device has for the model.")
@click.option("--memory", type=click.IntRange(1), metavar="BYTES", help="Arena at the most; needs --artifact.")
@click.option(
    "--artifact", type=click.Path(path_type=Path), help="Built from the recipe: what buckets take, estimated."
)
@click.option("--build-seconds", type=float, metavar="S", help="Build time at the most; needs --seconds-per-bucket.")
@click.option("--seconds-per-bucket", type=float, metavar="S", help="What a build spends on one bucket.")
@click.option("--write", is_flag=True, help="Write them into RECIPE; all else in the file stays.")
@JSON
def buckets(trace: Path, recipe: Path, entry: str | None, write: bool, as_json: bool, **limits: Any) -> None:
    """Choose the buckets that pad least for the shapes in TRACE: JSON lines or CSV, a key for each dimension, count."""
    from ..report.buckets import Wanted, chosen, write_chosen

    found = chosen(trace, recipe, Wanted(**limits), entry)
    echo(json.dumps(found.as_dict(), indent=2) if as_json else found.text())
    if write:
        write_chosen(recipe, found)
        echo(f"wrote {recipe}", err=True)


@click.command()
@click.argument("factory", metavar="[FACTORY | DIR | FILE.gguf]", required=False)
@click.option("--task", help="What to build a checkpoint for: text-generation, feature-extraction.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="File to write  [default: standard output]")
@click.option("--kwarg", "kwargs", multiple=True, metavar="NAME=VALUE", help="For FACTORY; the value is YAML.")
@click.option("--example", metavar="NAME", help="Instead: copy a recipe that comes with aotair, and its model, here.")
def init(factory: str | None, task: str | None, out: Path | None, kwargs: tuple[str, ...], example: str | None) -> None:
    """Write a first recipe: for FACTORY (package:callable or file.py:callable), from its model's signature; or for a
    checkpoint on disk, DIR as the Hugging Face hub lays it out or a GGUF file, from its configuration."""
    from ..disk.place import new_file
    from ..recipe.examples import copy_example
    from ..recipe.scaffold import first_recipe, read_kwargs

    if factory is None and example is not None:
        for file in copy_example(example, out or Path.cwd()):
            echo(f"wrote {file}", err=True)
        return
    if factory is None or example is not None:
        raise click.UsageError("give a factory, or --example NAME")
    if Path(factory).exists():
        from ..hf.scaffold import recipe_of

        text = recipe_of(Path(factory), task, Path() if out is None else out.parent)
    else:
        text = first_recipe(factory, read_kwargs(kwargs))
    if out is None:
        echo(text, nl=False)
        return
    if out.exists():
        raise click.UsageError(f"{out} exists already")
    with new_file(out) as aside:
        aside.write_text(text, encoding="utf-8")
    echo(f"wrote {out}; look through it, then: aotair build {out}", err=True)


@click.command()
def schema() -> None:
    """Print the recipe's JSON schema, for editors."""
    from ..recipe.recipe import Recipe

    echo(json.dumps(Recipe.model_json_schema(), indent=2))
