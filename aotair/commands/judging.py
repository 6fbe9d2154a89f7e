"""The commands that say what an artifact may be trusted with: whether it runs on this machine."""

import json
from pathlib import Path

import click

import aotair_runtime

from .options import ALLOW, DEVICE, IMPORT, JSON, import_modules


@click.command()
@click.argument("artifact", required=False, type=click.Path(path_type=Path))
@DEVICE
@click.option("--memory-budget", metavar="BYTES", help='The most that it may take: "24GiB", "90%".')
@ALLOW
@IMPORT
@JSON
def doctor(
    artifact: Path | None,
    device: str | None,
    memory_budget: str | None,
    namespaces: tuple[str, ...],
    modules: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say whether ARTIFACT runs on this machine, and what it lacks, without reading the weights; status 1 where it
    cannot. Without ARTIFACT, say what the machine has: torch, devices, drivers, memory."""
    import_modules(modules)
    if artifact is None:
        from aotair_runtime.fitness.node import this_node

        node = this_node()
        click.echo(json.dumps(node.as_dict(), indent=2) if as_json else str(node))
        return
    found = aotair_runtime.check(artifact, device=device, memory_budget=memory_budget, allow_namespaces=namespaces)
    click.echo(json.dumps(found.as_dict(), indent=2) if as_json else str(found))
    if not found.runs:
        raise SystemExit(1)
