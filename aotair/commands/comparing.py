"""The command that says what is different between two artifacts."""

import json
from pathlib import Path

import click

from ..tools.user_modules import import_modules
from .echo import echo
from .options import ALLOW, ALLOW_OP, DEVICE, IMPORT, JSON, MESH, loaded, say_which


@click.command()
@click.argument("one", metavar="A", type=click.Path(path_type=Path))
@click.argument("other", metavar="B", type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), help="Write a page of it here.")
@click.option("--bench", is_flag=True, help="Measure both on this machine, and compare the time by op.")
@click.option(
    "--seconds", type=click.FloatRange(0, 3600), default=1.0, show_default=True, help="With --bench: of each bucket."
)
@click.option(
    "--fail-on",
    metavar="CONDITIONS",
    help="Status 1 where one holds: any, recipe, versions, interface, buckets, ops, weights, plans, memory:+1%, "
    "size:+10MiB, proof:+50%, time:+5%; commas between them.",
)
@MESH
@DEVICE
@ALLOW
@ALLOW_OP
@IMPORT
@JSON
def diff(
    one: Path,
    other: Path,
    html: Path | None,
    bench: bool,
    seconds: float,
    fail_on: str | None,
    mesh: dict[str, int] | None,
    device: str | None,
    namespaces: tuple[str, ...],
    ops: tuple[str, ...],
    modules: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say what is different from artifact A to artifact B: recipe, versions, graphs, weights, plans, proofs, sizes."""
    from aotair_runtime.artifact.asked import Among, asked_for
    from aotair_runtime.artifact.open import open_artifact
    from aotair_runtime.format.mesh import sizes_of

    from ..diff.diff import diff as differing
    from ..diff.diff import with_times
    from ..diff.fail_on import conditions
    from ..diff.speed import Times, measured
    from ..diff.text import text

    wanted = conditions(fail_on, bench) if fail_on is not None else []
    import_modules(modules)
    asked = Among(asked_for(mesh).mesh)
    opened = [open_artifact(path, asked=asked) for path in (one, other)]
    found = differing(*opened)
    if bench:
        times: list[Times] = []
        for artifact in opened:
            mine = sizes_of(artifact.program.mesh)
            with loaded(artifact.path, namespaces, ops, modules, device=device, mesh=mine) as model:
                times.append(measured(model, seconds))
        found = with_times(found, *times)
    else:
        for artifact in opened:
            say_which(artifact.program)
    if html is not None:
        from ..diff.page import page
        from ..disk.place import new_file

        with new_file(html) as aside:
            aside.write_text(page(found), encoding="utf-8")
    echo(json.dumps(found.as_dict(), indent=2) if as_json else text(found))
    failed = [said for condition in wanted if (said := condition.fails(found))]
    for said in failed:
        echo(f"fails: {said}", err=True)
    if failed:
        raise SystemExit(1)
