"""What several commands take, and how they load an artifact."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import aotair_runtime
from aotair_runtime import TrustPolicy
from aotair_runtime.artifact.asked import asked_for
from aotair_runtime.artifact.open import read_program, read_programs
from aotair_runtime.format.mesh import mesh_text, meshes_text
from aotair_runtime.format.schema import Program
from aotair_runtime.model import Model

from ..tools.user_modules import import_modules
from .echo import echo, only_rank_0

ARTIFACT = click.argument("artifact", type=click.Path(path_type=Path))
DEVICE = click.option("--device", help='"npu", "cuda:1", …; "cpu" runs any artifact  [default: that of the artifact]')


def _mesh(context: click.Context, option: click.Parameter, value: str | None) -> dict[str, int] | None:
    """`dp=2,tp=4` as numbers of ranks by axis."""
    if value is None:
        return None
    pairs = [part.strip().partition("=") for part in value.split(",")]
    if not all(name and number.isascii() and number.isdecimal() and int(number) for name, _, number in pairs):
        raise click.BadParameter("give axes and numbers of ranks, as tp=4 or dp=2,tp=2; tp=1 is one rank")
    return {name: int(number) for name, _, number in pairs}


MESH = click.option(
    "--mesh",
    metavar="AXIS=RANKS",
    callback=_mesh,
    help="Of an artifact for several meshes: the program for this one, tp=4 or dp=2,tp=2; tp=1 is one rank.",
)
SET = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Another value for a field of the recipe: target.device=npu, model.kwargs.layers=24; the value is YAML.",
)
ALLOW = click.option(
    "--allow-namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="Allow custom ops of this namespace, beyond torch's own and torch_npu's.",
)
ALLOW_OP = click.option(
    "--allow-op", "ops", multiple=True, metavar="NAME", help="Allow this op, as aten::bincount, beyond the table's."
)
IMPORT = click.option(
    "--import", "modules", multiple=True, metavar="MODULE", help="Import this module first: it defines custom ops."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts instead of tables.")


def trusting(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say whose signature counts, as the argument `trust`."""

    @functools.wraps(command)
    def run(
        *,
        keys: tuple[Path, ...],
        certificates: tuple[Path, ...],
        names: tuple[str, ...],
        trust: Path | None,
        **more: Any,
    ) -> None:
        if trust is not None and (keys or certificates or names):
            raise click.UsageError("--trust stands alone: the file names keys and certificates")
        policy = None if trust is None else TrustPolicy.from_file(trust)
        if keys or certificates or names:
            policy = TrustPolicy(keys=keys, certificates=certificates, names=names)
        command(trust=policy, **more)

    path = click.Path(path_type=Path)
    for option in (
        click.option("--trust", type=path, help="A policy (JSON): only what it trusts."),
        click.option("--name", "names", multiple=True, help="With --certificate: the signer's mail address or name."),
        click.option("--certificate", "certificates", multiple=True, type=path, help="The signer's authority (PEM)."),
        click.option("--key", "keys", multiple=True, type=path, help="The signer's public key (PEM)."),
    ):
        run = option(run)
    return run


def programs_in(artifact: Path, mesh: dict[str, int] | None) -> tuple[Program, ...]:
    """The programs for all meshes of an artifact, or that for one of them."""
    return read_programs(artifact) if mesh is None else (read_program(artifact, asked_for(mesh)),)


def heading(program: Program) -> str:
    """What stands above what is said of one of several programs."""
    return f"== {mesh_text(program.mesh)} =="


def say_which(program: Program) -> None:
    """Of an artifact for several meshes, say on the side for which of them this program is."""
    if others := [mesh for mesh in program.beside.meshes if mesh != program.mesh]:
        echo(f"the program for {mesh_text(program.mesh)}; the artifact has others: {meshes_text(others)}", err=True)


def loaded(
    artifact: Path, namespaces: tuple[str, ...], ops: tuple[str, ...], modules: tuple[str, ...], **options: Any
) -> Model:
    """The artifact, after the user's modules are imported, and with the namespaces and ops that the user allows. Of
    several ranks only the first writes from then on. Of several programs it is said which one this is."""
    import_modules(modules)
    model = aotair_runtime.load(artifact, allow_namespaces=namespaces, allow_ops=ops, **options)
    only_rank_0(model.rank)
    say_which(model.program)
    return model
