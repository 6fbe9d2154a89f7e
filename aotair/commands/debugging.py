"""The command that finds where wrong numbers begin."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
import torch

from aotair_runtime.errors import AotairError

from ..tools.user_modules import import_modules
from .echo import echo
from .options import ALLOW, ALLOW_OP, DEVICE, IMPORT, JSON, SET

if TYPE_CHECKING:
    from ..debugger.finding import Debugged
    from ..debugger.search import Asked


@click.command()
@click.argument("what", metavar="RECIPE_OR_ARTIFACT", type=click.Path(path_type=Path))
@click.option("--recipe", type=click.Path(path_type=Path), help="Of an artifact: the recipe that it was built from.")
@click.option(
    "--inputs", type=click.Path(path_type=Path), help="Call with the tensors in this .safetensors or .npz file."
)
@click.option(
    "--snapshot", type=click.Path(path_type=Path), help="Make the call in this file, as Model.snapshot writes it."
)
@click.option("--entry", help="The entry point to call.")
@click.option("--bucket", help="The bucket, as inspect names it.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page of it here, with the errors as a plot.")
@SET
@DEVICE
@ALLOW
@ALLOW_OP
@IMPORT
@JSON
def debug(
    what: Path,
    recipe: Path | None,
    inputs: Path | None,
    snapshot: Path | None,
    entry: str | None,
    bucket: str | None,
    html: Path | None,
    changes: tuple[str, ...],
    device: str | None,
    namespaces: tuple[str, ...],
    ops: tuple[str, ...],
    modules: tuple[str, ...],
    as_json: bool,
) -> None:
    """Find where wrong numbers begin: the same call through each form of a model, from the original over every pass to
    the captured graph on a device. Status 1 where something is wrong."""
    from aotair_runtime.artifact.open import is_artifact

    from ..debugger.search import Asked
    from ..debugger.text import text

    if inputs is not None and snapshot is not None:
        raise click.UsageError("--inputs and --snapshot both say what the call is made with")
    given, states, entry = _call(inputs, snapshot, entry)
    if given is not None and bucket is not None:
        raise click.UsageError("--bucket goes with random inputs: those given choose their bucket")
    if recipe is not None and not is_artifact(what):
        raise click.UsageError("--recipe goes with an artifact: a recipe is looked at alone")
    if changes and recipe is None and is_artifact(what):
        raise click.UsageError("--set goes with a recipe: give --recipe")
    import_modules(modules)
    asked = Asked(entry, bucket, given, states, device)
    found = _searched(what, recipe, changes, asked, namespaces, ops)
    if html is not None:
        from ..debugger.page import page
        from ..disk.place import new_file

        with new_file(html) as aside:
            aside.write_text(page(found), encoding="utf-8")
    if as_json:
        echo(json.dumps([one.as_dict() for one in found], indent=2))
    else:
        echo("\n\n".join(map(text, found)))
    if not found[-1].is_right:
        raise SystemExit(1)


def _call(
    inputs: Path | None, snapshot: Path | None, entry: str | None
) -> tuple[dict[str, torch.Tensor] | None, dict[str, torch.Tensor] | None, str | None]:
    """The inputs and states of the call, and its entry point, as far as they are given."""
    if inputs is not None:
        from ..tools.tensor_files import read_tensor_file

        return read_tensor_file(inputs), None, entry
    if snapshot is None:
        return None, None, entry
    from aotair_runtime.snapshot.file import read_snapshot

    found = read_snapshot(snapshot)
    if entry not in (None, found.entry):
        raise AotairError("the snapshot calls another entry point", expected=str(entry), got=found.entry)
    return dict(found.inputs), dict(found.states), found.entry


def _searched(
    what: Path,
    recipe: Path | None,
    changes: tuple[str, ...],
    asked: "Asked",
    namespaces: tuple[str, ...],
    ops: tuple[str, ...],
) -> "list[Debugged]":
    from aotair_runtime.artifact.open import is_artifact, open_artifact
    from aotair_runtime.confine.op_table import Allowed

    from ..builder import debug as search
    from ..debugger.debug import debug_artifact
    from ..recipe.read import read_recipe

    artifact = open_artifact(what) if is_artifact(what) else None
    if artifact is not None and recipe is None:
        return [debug_artifact(artifact, asked, Allowed(namespaces, ops), lambda rung: None)]
    return search(read_recipe(recipe or what, changes), asked, artifact)
