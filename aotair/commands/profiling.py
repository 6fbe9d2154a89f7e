"""The command that takes the time of replays apart."""

import itertools
import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import aotair_runtime
from aotair_runtime.errors import AotairError
from aotair_runtime.model import Model

from .echo import echo
from .options import ALLOW, ALLOW_OP, ARTIFACT, DEVICE, IMPORT, JSON, MESH, loaded


@click.command()
@ARTIFACT
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    help="Call with the tensors in this .safetensors or .npz file, instead of the golden inputs of every bucket.",
)
@click.option("--entry", help="The entry point to call.")
@click.option("--bucket", help="Call this bucket alone, as inspect names it.")
@click.option("--calls", type=click.IntRange(1, 1_000_000), default=10, show_default=True, help="Calls of each bucket.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Write a trace for https://ui.perfetto.dev here.")
@click.option("--sizes", type=click.Path(path_type=Path), help="Write the sizes of the calls here, for aotair buckets.")
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Rows of each table.")
@click.option(
    "--seconds", type=click.FloatRange(0, 3600), default=2.0, show_default=True, help="Time for each bucket's rounds."
)
@MESH
@DEVICE
@ALLOW
@ALLOW_OP
@IMPORT
@JSON
def profile(
    artifact: Path,
    inputs: Path | None,
    entry: str | None,
    bucket: str | None,
    calls: int,
    out: Path | None,
    sizes: Path | None,
    top: int,
    seconds: float,
    mesh: dict[str, int] | None,
    device: str | None,
    namespaces: tuple[str, ...],
    ops: tuple[str, ...],
    modules: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say where the time of ARTIFACT goes: its load, its calls, and each instruction of a replay."""
    if inputs is not None and bucket is not None:
        raise click.UsageError("--bucket goes with the golden inputs: what is sent by --inputs chooses its bucket")
    warnings.simplefilter("ignore", aotair_runtime.errors.OutputHeldWarning)
    options = {"device": device, "mesh": mesh, "capture": "all" if bucket is None else "lazy"}
    with loaded(artifact, namespaces, ops, modules, **options) as model:
        given = list(_golden(model, entry, bucket) if inputs is None else _from_file(model, entry, inputs))
        with model.profile(seconds=seconds) as found:
            for (name, tensors), _ in itertools.product(given, range(calls)):
                model.entry_points[name].flat(tensors)
        if out is not None:
            found.trace(out)
        if sizes is not None:
            found.sent(sizes, entry)
        echo(json.dumps([asdict(one) for one in found.buckets], indent=2) if as_json else found.table(top))


def _golden(model: Model, entry: str | None, bucket: str | None) -> Iterator[tuple[str, list[Any]]]:
    """The golden inputs of every bucket, or of those that are asked for."""
    from aotair_runtime.artifact.open import read_golden
    from aotair_runtime.format.sizes import describe
    from aotair_runtime.weights.golden import golden_inputs

    golden, count = read_golden(model.artifact), 0
    for spec in model.program.entry_points:
        for number, one in enumerate(spec.buckets):
            if entry in (None, spec.name) and bucket in (None, describe(spec, one.sizes)):
                count += 1
                tensors = golden_inputs(golden, spec, number, model.device)
                yield spec.name, [t.tolist() if item.host else t for item, t in zip(spec.inputs, tensors, strict=True)]
    if not count:
        names = [f"{name}: {one}" for name, buckets in model.buckets.items() for one in buckets]
        raise AotairError("no such bucket", expected="; ".join(names), got=f"{entry or 'any'}: {bucket or 'any'}")


def _from_file(model: Model, entry: str | None, file: Path) -> Iterator[tuple[str, list[Any]]]:
    """The tensors in a file, in the order of the entry point's inputs."""
    from ..tools.tensor_files import read_tensor_file

    name = entry or next(iter(model.entry_points))
    if name not in model.entry_points:
        raise AotairError("no such entry point", expected=", ".join(model.entry_points), got=name)
    given, specs = read_tensor_file(file), model.entry_points[name].spec.inputs
    if missing := [spec.name for spec in specs if spec.name not in given]:
        raise AotairError("the file lacks inputs", where=str(file), expected=", ".join(missing), got=", ".join(given))
    yield name, [given[one.name].tolist() if one.host else given[one.name].to(model.device) for one in specs]
