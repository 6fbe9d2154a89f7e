"""How does the command line build several recipes: one after the other here, or at the same time on a cluster?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..summary import Outcome
from .echo import echo

if TYPE_CHECKING:
    from ..recipe.recipe import Recipe


def build_all(
    files: Sequence[Path], recipes: Sequence[Recipe], jobs: int | None, on: str | None, as_json: bool
) -> None:
    """Build every recipe that can be built, each into NAME.aotair; ends with status 1 where one cannot."""
    from ..report.progress import summary_table

    outs = [Path(f"{recipe.name}.aotair") for recipe in recipes]
    if twice := sorted({str(out) for out in outs if outs.count(out) > 1}):
        raise click.UsageError(f"several recipes would be built into {', '.join(twice)}: give them other names")
    if on == "ray":
        try:
            from ..cluster import built_on_ray
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise click.UsageError("--on ray: Ray is not installed: pip install 'aotair[ray]'") from error
        outcomes = built_on_ray(recipes, outs, jobs)
    else:
        outcomes = _built_in_turn(recipes, outs, jobs, as_json)
    failed, made = False, {}
    for outcome in outcomes:
        file = str(files[outcome.number])
        if outcome.summary is None:
            failed = True
            text = outcome.error if outcome.error.startswith(file) else f"{file}: {outcome.error}"
            echo(f"error: {text}", err=True)
        elif as_json:
            made[file] = outcome.summary.as_dict()
        else:
            echo(f"{file}\n{summary_table(outcome.summary)}\n")
    if as_json:
        echo(json.dumps(made, indent=2))
    if failed:
        raise SystemExit(1)


def _built_in_turn(recipes: Sequence[Recipe], outs: Sequence[Path], jobs: int | None, quiet: bool) -> Iterator[Outcome]:
    """One recipe after the other, in this process."""
    from aotair_runtime.errors import AotairError

    from ..builder import build_with_summary
    from ..report.progress import Progress

    for number, (recipe, out) in enumerate(zip(recipes, outs, strict=True)):
        try:
            with Progress(quiet=quiet) as progress:
                outcome = Outcome(number, build_with_summary(recipe, out, progress, jobs=jobs))
        except AotairError as error:
            outcome = Outcome(number, None, str(error))
        yield outcome
