"""The command `aotair`: what a user can mend is one message and status 1, what is our fault keeps its traceback."""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import aotair_runtime
from aotair_runtime.errors import AotairError
from aotair_runtime.format.schema import Program
from aotair_runtime.model import Model


class _Group(click.Group):
    """Turns refusals into one message, and an interruption into one line."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except AotairError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("interrupted: nothing was written", err=True)
            ctx.exit(130)
        except BrokenPipeError:
            sys.stderr.close()
            ctx.exit(1)
        except OSError as error:
            if error.filename is None:
                raise
            click.echo(f"error: {error.filename}: {error.strerror}", err=True)
            ctx.exit(1)


_ARTIFACT = click.argument("artifact", type=click.Path(path_type=Path))
_DEVICE = click.option("--device", help='"npu", "cuda:1", …; "cpu" runs any artifact  [default: that of the artifact]')
_SET = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Another value for a field of the recipe: target.device=npu, model.kwargs.layers=24; the value is YAML.",
)
_ALLOW = click.option(
    "--allow-namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="Allow custom ops of this namespace, beyond torch's own and torch_npu's.",
)
_IMPORT = click.option(
    "--import", "modules", multiple=True, metavar="MODULE", help="Import this module first: it defines custom ops."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts instead of tables.")


def _loaded(artifact: Path, namespaces: tuple[str, ...], modules: tuple[str, ...], **options: Any) -> Model:
    """The artifact, after the user's modules are imported, and with the namespaces that the user allows."""
    import importlib

    sys.path.insert(0, str(Path.cwd()))
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise AotairError(f"--import {module}: {error}", expected="a module that Python finds") from error
    return aotair_runtime.load(artifact, allow_namespaces=namespaces, **options)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(aotair_runtime.__version__, prog_name="aotair")
@click.option("--debug", is_flag=True, help="Log what each pass does, and the graph where it changed.")
def main(debug: bool) -> None:
    """Build PyTorch models ahead of time, and replay them."""
    if debug:
        import logging

        from .log import logger

        logger.setLevel(logging.DEBUG)


@main.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Directory to write  [default: NAME.aotair]")
@_SET
@_ALLOW
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
@_JSON
def build(
    recipe: Path,
    out: Path | None,
    changes: tuple[str, ...],
    namespaces: tuple[str, ...],
    dump_graph: Path | None,
    stop_after: str | None,
    max_rewrites: int | None,
    like: Path | None,
    as_json: bool,
) -> None:
    """Build RECIPE into an artifact, and prove it against the original model."""
    from .builder import build_with_summary
    from .recipe.read import read_recipe
    from .report.progress import Progress, summary_table
    from .summary import Bisection

    parsed = read_recipe(recipe, changes)
    allowed = [*dict.fromkeys((*parsed.target.allow_namespaces, *namespaces))]
    parsed = parsed.model_copy(update={"target": parsed.target.model_copy(update={"allow_namespaces": allowed})})
    if dump_graph is not None:
        parsed = parsed.model_copy(update={"config": parsed.config.dumping_into(dump_graph)})
    with Progress(quiet=as_json) as progress:
        summary = build_with_summary(parsed, out, progress, Bisection(stop_after, max_rewrites), like)
    click.echo(json.dumps(summary.as_dict(), indent=2) if as_json else summary_table(summary))


@main.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--rule", metavar="NAME", help="Only this fusion rule, or this pass.")
@_SET
@_JSON
def explain(recipe: Path, rule: str | None, changes: tuple[str, ...], as_json: bool) -> None:
    """Say what each fusion rule did to the model of RECIPE, and why it left near matches alone."""
    from .builder import explain as explained
    from .recipe.read import read_recipe

    found = explained(read_recipe(recipe, changes))
    click.echo(json.dumps(found.as_dict(rule), indent=2) if as_json else found.text(rule))


@main.command()
@click.argument("what", metavar="[RECIPE_OR_ARTIFACT]", required=False, type=click.Path(path_type=Path))
@click.option("--intervals", "file", type=click.Path(path_type=Path), help="Plan a CSV file: id,lower,upper,size.")
@click.option("--alignment", default=1, show_default=True, help="With --intervals: bytes that divide every offset.")
@click.option(
    "--seconds",
    default=10.0,
    show_default=True,
    help="With --intervals: work for the searches, counted, in about so many seconds.",
)
@_SET
@_JSON
def plan(
    what: Path | None, file: Path | None, alignment: int, seconds: float, changes: tuple[str, ...], as_json: bool
) -> None:
    """Print what memory an artifact takes, or a recipe's will: by purpose, by bucket, and beside the plans.

    With --intervals, plan those of a file in MiniMalloc's format (upper excluded): height, lower bound, gap, offsets.
    """
    if (what is None) == (file is None):
        raise click.UsageError("give a recipe, an artifact or --intervals FILE.csv, one of them")
    if file is not None:
        from .tools.intervals import planned

        found = planned(file, alignment, seconds)
        click.echo(json.dumps(found.as_dict(), indent=2) if as_json else found.text())
        return
    from .promise import promised
    from .report.memory import memory_dict, memory_text

    assert what is not None
    program, refuse_too_much = _program(what, changes, as_json)
    promise = promised(program)
    click.echo(json.dumps(memory_dict(program, promise), indent=2) if as_json else memory_text(program, promise))
    refuse_too_much()


def _program(what: Path, changes: tuple[str, ...], quiet: bool) -> tuple[Program, Callable[[], None]]:
    """The program that was or would be built, and what refuses it where its recipe gives it less memory."""
    if what.is_dir():
        if changes:
            raise click.UsageError("--set changes a recipe, and this is an artifact")
        from aotair_runtime.artifact.open import read_program

        return read_program(what), lambda: None
    from .builder import plan as planned
    from .promise import refuse_over_budget
    from .recipe.read import read_recipe
    from .report.progress import Progress

    recipe = read_recipe(what, changes)
    with Progress(quiet=quiet) as progress:
        program = planned(recipe, progress)
    return program, functools.partial(refuse_over_budget, program, recipe.target, recipe.where)


@main.command()
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
@_JSON
def buckets(trace: Path, recipe: Path, entry: str | None, write: bool, as_json: bool, **limits: Any) -> None:
    """Choose the buckets that pad least for the shapes in TRACE: JSON lines or CSV, a key for each dimension, count."""
    from .report.buckets import Wanted, chosen, write_chosen

    found = chosen(trace, recipe, Wanted(**limits), entry)
    click.echo(json.dumps(found.as_dict(), indent=2) if as_json else found.text())
    if write:
        write_chosen(recipe, found)
        click.echo(f"wrote {recipe}", err=True)


@main.command()
@click.argument("factory", required=False)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="File to write  [default: standard output]")
@click.option("--kwarg", "kwargs", multiple=True, metavar="NAME=VALUE", help="For FACTORY; the value is YAML.")
@click.option("--example", metavar="NAME", help="Instead: copy a recipe that comes with aotair, and its model, here.")
def init(factory: str | None, out: Path | None, kwargs: tuple[str, ...], example: str | None) -> None:
    """Write a first recipe for FACTORY (package:callable or file.py:callable) from its model's signature."""
    from .recipe.examples import copy_example
    from .recipe.scaffold import first_recipe, read_kwargs

    if factory is None and example is not None:
        for file in copy_example(example, out or Path.cwd()):
            click.echo(f"wrote {file}", err=True)
        return
    if factory is None or example is not None:
        raise click.UsageError("give a factory, or --example NAME")
    text = first_recipe(factory, read_kwargs(kwargs))
    if out is None:
        click.echo(text, nl=False)
        return
    if out.exists():
        raise click.UsageError(f"{out} exists already")
    out.write_text(text, encoding="utf-8")
    click.echo(f"wrote {out}; look through it, then: aotair build {out}", err=True)


@main.command()
def schema() -> None:
    """Print the recipe's JSON schema, for editors."""
    from .recipe.recipe import Recipe

    click.echo(json.dumps(Recipe.model_json_schema(), indent=2))


@main.command()
@_ARTIFACT
@click.option("--bucket", help="Print the tensors and instructions of this bucket, as the table names it.")
@_JSON
def inspect(artifact: Path, bucket: str | None, as_json: bool) -> None:
    """Print what an artifact holds: entry points, buckets, plans, and a bucket's program."""
    from dataclasses import asdict

    from aotair_runtime.artifact.open import read_program
    from aotair_runtime.format.sizes import describe
    from aotair_runtime.format.text import bucket_text, summary

    program = read_program(artifact)
    if as_json:
        click.echo(json.dumps(asdict(program), indent=2))
        return
    if bucket is None:
        click.echo(summary(program))
        return
    found = [(e, b) for e in program.entry_points for b in e.buckets if describe(e, b.sizes) == bucket]
    if not found:
        names = "; ".join(describe(e, b.sizes) for e in program.entry_points for b in e.buckets)
        raise AotairError("no such bucket", where=str(artifact), expected=names, got=bucket)
    for entry, item in found:
        click.echo(bucket_text(program, entry, item))


@main.command()
@_ARTIFACT
@click.argument("inputs", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="Write the outputs to this .safetensors or .npz file."
)
@click.option("--entry", help="The entry point to call.")
@_DEVICE
@_ALLOW
@_IMPORT
def run(
    artifact: Path,
    inputs: Path,
    out: Path | None,
    entry: str | None,
    device: str | None,
    namespaces: tuple[str, ...],
    modules: tuple[str, ...],
) -> None:
    """Call ARTIFACT with the tensors in INPUTS, a .safetensors or .npz file."""
    from .tools.tensor_files import describe_tensor, read_tensor_file, write_tensors

    given = read_tensor_file(inputs)
    options = {"device": device, "enable_output_clone": True, "capture": "lazy"}
    with _loaded(artifact, namespaces, modules, **options) as model:
        hosts = {spec.name for entry in model.program.entry_points for spec in entry.inputs if spec.host}
        given = {key: tensor if key in hosts else tensor.to(model.device) for key, tensor in given.items()}
        name = entry or next(iter(model.entry_points))
        if name not in model.entry_points:
            raise AotairError("no such entry point", expected=", ".join(model.entry_points), got=name)
        outputs = {key: tensor.cpu() for key, tensor in model.entry_points[name].named_outputs(given).items()}
    for key, tensor in outputs.items():
        click.echo(f"{key}: {describe_tensor(tensor)}")
    if out is not None:
        write_tensors(out, outputs)


@main.command()
@_ARTIFACT
@_DEVICE
@_ALLOW
@_IMPORT
@_JSON
def verify(
    artifact: Path, device: str | None, namespaces: tuple[str, ...], modules: tuple[str, ...], as_json: bool
) -> None:
    """Check the digests of ARTIFACT and replay its golden inputs on this machine."""
    from dataclasses import asdict

    from aotair_runtime.format.text import table
    from aotair_runtime.weights.golden import replay_golden

    with _loaded(artifact, namespaces, modules, device=device, enable_output_clone=True) as model:
        results = list(replay_golden(model))
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=2))
    else:
        rows = [[f"{r.entry}: {r.bucket}", f"{r.max_abs_error:.2e}", "ok" if r.within else "WRONG"] for r in results]
        click.echo(table(["bucket", "largest error", "result"], rows))
    if not all(result.within for result in results):
        raise SystemExit(1)


@main.command()
@_ARTIFACT
@click.option("--recipe", type=click.Path(path_type=Path), help="Time the recipe's original model beside the artifact.")
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Time to spend on each bucket."
)
@click.option("--memory", is_flag=True, help="Print the memory table too.")
@_DEVICE
@_ALLOW
@_IMPORT
@_JSON
def bench(
    artifact: Path,
    recipe: Path | None,
    seconds: float,
    memory: bool,
    device: str | None,
    namespaces: tuple[str, ...],
    modules: tuple[str, ...],
    as_json: bool,
) -> None:
    """Time every bucket: median and p99 of a call, and the host's work around the replay."""
    import warnings

    from .tools.bench import bench_table, measure

    originals = {}
    if recipe is not None:
        from .model.arguments import by_name
        from .model.load import load_model
        from .recipe.job import job_of
        from .recipe.read import read_recipe

        job = job_of(read_recipe(recipe))
        original = load_model(job)
        originals = {one.entry: by_name(getattr(original, one.method), one) for one in job.entries}
    warnings.simplefilter("ignore", aotair_runtime.errors.OutputHeldWarning)
    with _loaded(artifact, namespaces, modules, device=device) as model:
        if originals:
            original.to(model.device)
        rows = list(measure(model, originals, seconds))
        if as_json:
            click.echo(json.dumps([row.as_dict() for row in rows], indent=2))
            return
        click.echo(bench_table(rows))
        if memory:
            click.echo(f"\n{model.memory()}")


if __name__ == "__main__":
    main()
