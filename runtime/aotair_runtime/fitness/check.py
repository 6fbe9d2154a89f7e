"""Would a load of this artifact succeed here? Worked out from its program alone."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from ..artifact.asked import AnyOf, asked_for
from ..artifact.digests import check_length
from ..artifact.folder import Folder
from ..artifact.open import check_bounds, file_of, opened
from ..devices import KINDS, Device, Limits
from ..errors import ArtifactError, DeviceError
from ..format.limits import MOST_PROGRAM_BYTES
from ..format.mesh import mesh_text, meshes_text, ranks_of
from ..format.schema import PROGRAM_FILE, WEIGHTS_FILE, Program
from ..model import buckets_now
from ..settings import Settings, settle
from ..trust.gate import gate_for
from ..trust.policy import TrustPolicy
from .needs import (
    capture_row,
    find_device,
    instructions_row,
    int8_row,
    memory_rows,
    op_rows,
    packed_row,
    torch_row,
    vendor_rows,
)
from .verdict import Requirement, Verdict


def check(
    path: str | Path,
    *,
    device: str | torch.device | None = None,
    capture: str | Sequence[str] = "all",
    limits: Limits | None = None,
    memory_budget: int | float | str | None = None,
    allow_namespaces: Sequence[str] = (),
    allow_ops: Sequence[str] = (),
    pack_weights: bool | None = None,
    trust: TrustPolicy | None = None,
    mesh: Mapping[str, int] | None = None,
) -> Verdict:
    """Whether the artifact at `path` runs on this node, without reading its weights: "runs here", "runs here slower"
    or "cannot", with a row for each requirement. The arguments are those that `load` would be given.

    Without `device`, and where the artifact's own is not there, the answer is that for the CPU, which `Verdict.device`
    says then. Nothing is allocated, but where a weight is packed on trial to know its size. An artifact whose program
    is whole is never refused: what is missing is a row. Of an artifact for several meshes the answer is that for the
    program of `mesh`, by default that of one rank or else the first; the row "ranks" says which. Raises the subclass of
    ArtifactError that `load` raises for one that is malformed, cut or none, RankError where there is no such mesh, and
    ArgumentError or DeviceError for wrong arguments.
    """
    _refuse_unknown(device)
    folder, program = opened(Path(path), asked=AnyOf() if mesh is None else asked_for(mesh))
    try:
        settings = settle(
            program.options,
            capture=capture,
            limits=limits,
            memory_budget=memory_budget,
            allow_namespaces=allow_namespaces,
            allow_ops=allow_ops,
            pack_weights=pack_weights,
        )
        check_length(folder.file(WEIGHTS_FILE), file_of(program, WEIGHTS_FILE))
        check_bounds(folder.file(WEIGHTS_FILE), program)
        rows = [torch_row(program), *_signature(folder, trust)]
    finally:
        folder.close()
    found, row = find_device(program, device)
    rows += [row, *_ranks(program)]
    if found is not None:
        wanted = buckets_now(program, settings.capture)
        rows += [*vendor_rows(program, found), *int8_row(program, found)]
        rows += op_rows(program, found, settings, str(path))
        rows.append(capture_row(program, found, settings, wanted, str(path)))
        rows += memory_rows(program, found, settings, str(path))
        rows += _speed(program, found, settings)
    name = str(found.torch_device) if found is not None else str(device or program.requirements.device)
    return Verdict(str(path), program.name, name[:80], tuple(rows))


def _refuse_unknown(device: object) -> None:
    """Raises DeviceError for what is no device of any node; one that this node lacks is an answer."""
    kind, _, index = str(device).partition(":")
    if device is not None and (kind not in KINDS or (index and (kind == "cpu" or not index.isdecimal()))):
        raise DeviceError(f"unknown device {str(device)[:80]!r}", expected=" or ".join(KINDS) + ", with an index")


def _ranks(program: Program) -> Iterator[Requirement]:
    """How many processes load it together: started by whoever asks, so that nothing is missing here."""
    if not program.mesh and not program.beside.meshes:
        return
    count = ranks_of(program.mesh)
    needs = f"{count}: {mesh_text(program.mesh)}" if program.mesh else "1"
    have = f"torchrun --nproc-per-node {count} starts them" if program.mesh else "this process"
    others = [mesh for mesh in program.beside.meshes if mesh != program.mesh]
    yield Requirement("ranks", needs, f"{have}; other meshes: {meshes_text(others)}" if others else have)


def _signature(folder: Folder, trust: TrustPolicy | None) -> Iterator[Requirement]:
    """Whether the policies of caller and node would let it in, as far as that is known without its weights."""
    gate = gate_for(trust, "full", everything=False)
    if gate is None:
        return
    try:
        gate.admit(folder, folder.file(PROGRAM_FILE).content(MOST_PROGRAM_BYTES))
    except ArtifactError as error:
        yield Requirement("signature", "one that the policy trusts", error.what, "missing", error.fix or error.got)
        return
    yield Requirement("signature", "one that the policy trusts", "a good one")


def _speed(program: Program, device: Device, settings: Settings) -> Iterator[Requirement]:
    """What it runs without, and slower."""
    yield from packed_row(program, device, settings)
    yield from instructions_row(program, device)
