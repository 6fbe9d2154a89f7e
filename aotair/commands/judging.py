"""The commands that say what an artifact may be trusted with: whether it runs on this machine, and who signed it."""

import json
from pathlib import Path

import click

import aotair_runtime
from aotair_runtime import TrustPolicy
from aotair_runtime.format.schema import SIGNATURE_FILE

from ..tools.user_modules import import_modules
from .echo import echo
from .options import ALLOW, ALLOW_OP, ARTIFACT, DEVICE, IMPORT, JSON, MESH, trusting


@click.command()
@click.argument("artifact", required=False, type=click.Path(path_type=Path))
@MESH
@DEVICE
@trusting
@click.option("--memory-budget", metavar="BYTES", help='The most that it may take: "24GiB", "90%".')
@ALLOW
@ALLOW_OP
@IMPORT
@JSON
def doctor(
    artifact: Path | None,
    trust: TrustPolicy | None,
    mesh: dict[str, int] | None,
    device: str | None,
    memory_budget: str | None,
    namespaces: tuple[str, ...],
    ops: tuple[str, ...],
    modules: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say whether ARTIFACT runs on this machine, and what it lacks, without reading the weights; status 1 where it
    cannot. Without ARTIFACT, say what the machine has: torch, devices, drivers, memory."""
    import_modules(modules)
    if artifact is None:
        from aotair_runtime.fitness.node import this_node

        node = this_node()
        echo(json.dumps(node.as_dict(), indent=2) if as_json else str(node))
        return
    found = aotair_runtime.check(
        artifact,
        device=device,
        memory_budget=memory_budget,
        allow_namespaces=namespaces,
        allow_ops=ops,
        trust=trust,
        mesh=mesh,
    )
    echo(json.dumps(found.as_dict(), indent=2) if as_json else str(found))
    if not found.runs:
        raise SystemExit(1)


@click.command()
@ARTIFACT
@click.option("--key", type=click.Path(path_type=Path), help="The private key (PEM; P-256, P-384 or P-521).")
@click.option("--password-file", type=click.Path(path_type=Path), help="Holds the password of the key, if it has one.")
@click.option("--certificate", type=click.Path(path_type=Path), help="The signer's certificate, of that key (PEM).")
@click.option(
    "--chain", "chain", multiple=True, type=click.Path(path_type=Path), help="Certificates that vouch for it (PEM)."
)
def sign(
    artifact: Path, key: Path | None, password_file: Path | None, certificate: Path | None, chain: tuple[Path, ...]
) -> None:
    """Sign all files of ARTIFACT, after they were compared with their digests, into its file model.sig (the OpenSSF
    model signing format). A signature that is there is replaced."""
    from ..tools.sign import Signer, sign_artifact

    if key is None:
        raise click.UsageError("give the private key: --key FILE")
    if chain and certificate is None:
        raise click.UsageError("--chain goes with --certificate")
    count = sign_artifact(artifact, Signer(key, password_file, certificate, chain))
    echo(f"signed {count} files: {artifact / SIGNATURE_FILE}")
