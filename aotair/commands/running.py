"""The commands that read an artifact: the runtime's packages are enough for all but what compares with a recipe."""

import json
from pathlib import Path
from typing import Any

import click

import aotair_runtime
from aotair_runtime import TrustPolicy
from aotair_runtime.errors import AotairError
from aotair_runtime.format.schema import Program
from aotair_runtime.model import Model

from .echo import echo
from .options import (
    ALLOW,
    ALLOW_OP,
    ARTIFACT,
    DEVICE,
    IMPORT,
    JSON,
    MESH,
    heading,
    loaded,
    programs_in,
    trusting,
)


@click.command()
@ARTIFACT
@click.option("--bucket", help="Print the tensors and instructions of this bucket, as the table names it.")
@click.option("--weights", is_flag=True, help="Print the stored tensors, and what each follows from.")
@MESH
@JSON
def inspect(artifact: Path, bucket: str | None, weights: bool, mesh: dict[str, int] | None, as_json: bool) -> None:
    """Print what an artifact holds: entry points, buckets, plans, a bucket's program, its weights; for each of its
    meshes, or for --mesh."""
    from dataclasses import asdict

    from aotair_runtime.format.text import summary, weights_text

    programs = programs_in(artifact, mesh)
    if as_json:
        found = [asdict(program) for program in programs]
        echo(json.dumps(found if len(found) > 1 else found[0], indent=2))
        return
    for number, program in enumerate(programs):
        if len(programs) > 1:
            echo(("\n" if number else "") + heading(program))
        if weights:
            echo(weights_text(program))
        elif bucket is None:
            echo(summary(program))
        else:
            _inspect_bucket(artifact, program, bucket)


def _inspect_bucket(artifact: Path, program: Program, bucket: str) -> None:
    from aotair_runtime.format.sizes import describe
    from aotair_runtime.format.text import bucket_text

    found = [(e, b) for e in program.entry_points for b in e.buckets if describe(e, b.sizes) == bucket]
    if not found:
        names = "; ".join(describe(e, b.sizes) for e in program.entry_points for b in e.buckets)
        raise AotairError("no such bucket", where=str(artifact), expected=names, got=bucket)
    for entry, item in found:
        echo(bucket_text(program, entry, item))


@click.command()
@ARTIFACT
@click.argument("inputs", required=False, type=click.Path(path_type=Path))
@click.option(
    "--snapshot",
    type=click.Path(path_type=Path),
    help="Make the call in this file, as Model.snapshot writes it, instead of one with INPUTS.",
)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="Write the outputs to this .safetensors or .npz file."
)
@click.option("--entry", help="The entry point to call.")
@MESH
@DEVICE
@ALLOW
@ALLOW_OP
@IMPORT
def run(
    artifact: Path,
    inputs: Path | None,
    snapshot: Path | None,
    out: Path | None,
    entry: str | None,
    mesh: dict[str, int] | None,
    device: str | None,
    namespaces: tuple[str, ...],
    ops: tuple[str, ...],
    modules: tuple[str, ...],
) -> None:
    """Call ARTIFACT with the tensors in INPUTS, a .safetensors or .npz file, or with those of a snapshot."""
    from ..tools.tensor_files import describe_tensor, write_tensors

    if (inputs is None) == (snapshot is None):
        raise click.UsageError("give the inputs of the call: a file INPUTS, or --snapshot FILE")
    if snapshot is not None and entry is not None:
        raise click.UsageError("--entry goes with INPUTS: a snapshot says which entry point it calls")
    options = {"device": device, "mesh": mesh, "enable_output_clone": True, "capture": "lazy"}
    with loaded(artifact, namespaces, ops, modules, **options) as model:
        found = _replayed(model, snapshot) if snapshot is not None else _called(model, inputs or Path(), entry)
        outputs = {key: tensor.cpu() for key, tensor in found.items()}
    for key, tensor in outputs.items():
        echo(f"{key}: {describe_tensor(tensor)}")
    if out is not None and model.rank == 0:
        write_tensors(out, outputs)


def _called(model: Model, inputs: Path, entry: str | None) -> dict[str, Any]:
    """What a call with the tensors in a file gives."""
    from ..tools.tensor_files import read_tensor_file

    given = read_tensor_file(inputs)
    hosts = {spec.name for entry in model.program.entry_points for spec in entry.inputs if spec.host}
    given = {key: tensor if key in hosts else tensor.to(model.device) for key, tensor in given.items()}
    name = entry or next(iter(model.entry_points))
    if name not in model.entry_points:
        raise AotairError("no such entry point", expected=", ".join(model.entry_points), got=name)
    return model.entry_points[name].named_outputs(given)


def _replayed(model: Model, path: Path) -> dict[str, Any]:
    """What the call in a snapshot gives here."""
    from aotair_runtime.snapshot.file import read_snapshot
    from aotair_runtime.snapshot.replay import notes, replay

    snapshot = read_snapshot(path)
    outputs = replay(model, snapshot, str(path))
    for note in notes(model.artifact, snapshot):
        echo(f"note: {note}", err=True)
    if snapshot.error:
        echo(f"there, on {snapshot.device} with torch {snapshot.torch_version}, it failed: {snapshot.error}", err=True)
    return outputs


@click.command()
@ARTIFACT
@trusting
@click.option("--signature-only", is_flag=True, help="Check the signature and all digests, and replay nothing.")
@MESH
@DEVICE
@ALLOW
@ALLOW_OP
@IMPORT
@JSON
def verify(
    artifact: Path,
    trust: TrustPolicy | None,
    signature_only: bool,
    mesh: dict[str, int] | None,
    device: str | None,
    namespaces: tuple[str, ...],
    ops: tuple[str, ...],
    modules: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check the digests of ARTIFACT and replay its golden inputs on this machine; with --key, --certificate or --trust,
    its signature first."""
    from dataclasses import asdict

    from aotair_runtime.artifact.companions import check_companions
    from aotair_runtime.format.text import table
    from aotair_runtime.weights.golden import replay_golden

    if signature_only:
        _check_signature(artifact, trust)
        return
    options = {"device": device, "mesh": mesh, "enable_output_clone": True, "trust": trust}
    with loaded(artifact, namespaces, ops, modules, **options) as model:
        check_companions(model.artifact.folder or artifact, model.program)
        results = list(replay_golden(model))
    if as_json:
        echo(json.dumps([asdict(result) for result in results], indent=2))
    else:
        rows = [
            [f"{r.entry}: {r.bucket}", f"{r.max_abs_error:.2e}", f"{r.units:.3g}", "ok" if r.within else "WRONG"]
            for r in results
        ]
        echo(table(["bucket", "largest error", "in units", "result"], rows))
    if not all(result.within for result in results):
        raise SystemExit(1)


def _check_signature(artifact: Path, trust: TrustPolicy | None) -> None:
    from aotair_runtime.artifact.asked import AnyOf
    from aotair_runtime.artifact.open import opened, with_weights
    from aotair_runtime.trust.gate import gate_for

    gate = gate_for(trust, "full")
    if gate is None:
        raise click.UsageError("--signature-only goes with --key, --certificate or --trust")
    with_weights(*opened(artifact, gate, AnyOf()), gate=gate)
    echo("the signature is good, and all files are those that were signed")


@click.command()
@ARTIFACT
@click.option("--recipe", type=click.Path(path_type=Path), help="Time the recipe's original model beside the artifact.")
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Time to spend on each bucket."
)
@click.option("--memory", is_flag=True, help="Print the memory table too.")
@click.option(
    "--workers",
    type=click.IntRange(2, 64),
    help="On the CPU, how many calls a second so many processes make that share the threads, beside one with all.",
)
@MESH
@DEVICE
@ALLOW
@ALLOW_OP
@IMPORT
@JSON
def bench(
    artifact: Path,
    recipe: Path | None,
    seconds: float,
    memory: bool,
    workers: int | None,
    mesh: dict[str, int] | None,
    device: str | None,
    namespaces: tuple[str, ...],
    ops: tuple[str, ...],
    modules: tuple[str, ...],
    as_json: bool,
) -> None:
    """Time every bucket: median and p99 of a call, and the host's work around the replay."""
    import warnings

    if workers is not None:
        if recipe is not None or memory:
            raise click.UsageError("--workers counts calls of processes, without --recipe and --memory")
        options = {"device": device or "cpu", "mesh": mesh, "allow_namespaces": namespaces, "allow_ops": ops}
        _bench_workers(artifact, workers, seconds, modules, options, as_json)
        return

    from ..tools.bench import bench_table, measure

    originals = {}
    if recipe is not None:
        from ..model.arguments import by_name
        from ..model.load import load_model
        from ..recipe.job import job_of
        from ..recipe.read import read_recipe

        job = job_of(read_recipe(recipe))
        original = load_model(job)
        originals = {one.entry: by_name(getattr(original, one.method), one) for one in job.entries}
    warnings.simplefilter("ignore", aotair_runtime.errors.OutputHeldWarning)
    with loaded(artifact, namespaces, ops, modules, device=device, mesh=mesh) as model:
        if originals:
            original.to(model.device)
        if not model.drives:
            model.follow()
            return
        rows = list(measure(model, originals, seconds))
        if as_json:
            echo(json.dumps([row.as_dict() for row in rows], indent=2))
            return
        echo(bench_table(rows))
        if memory:
            echo(f"\n{model.memory()}")


def _bench_workers(
    artifact: Path, workers: int, seconds: float, modules: tuple[str, ...], options: dict[str, Any], as_json: bool
) -> None:
    from dataclasses import replace

    import torch

    from aotair_runtime.artifact.asked import asked_for
    from aotair_runtime.artifact.open import read_program

    from ..tools.workers import Work, throughput, workers_table

    if read_program(artifact, asked_for(options["mesh"])).mesh:
        raise click.UsageError("--workers is for artifacts of one rank")
    threads = torch.get_num_threads()
    one = Work(artifact, 1, threads, seconds, modules, options)
    alone, shared = throughput(one), throughput(replace(one, workers=workers, threads=max(1, threads // workers)))
    if as_json:
        echo(json.dumps([row.as_dict() for row in (*alone, *shared)], indent=2))
    else:
        echo(workers_table(alone, shared))
