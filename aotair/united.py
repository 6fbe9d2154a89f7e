"""How do the programs of a build become one artifact? One as it is; several for several meshes as a list, with what
they share beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from aotair_runtime.artifact.asked import Asked
from aotair_runtime.artifact.checkpoint import same_bytes
from aotair_runtime.artifact.open import Artifact
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.format import codec, debug_data
from aotair_runtime.format.debug_data import DebugData
from aotair_runtime.format.schema import GOLDEN_FILE, PROGRAM_FILE, WEIGHTS_FILE, File, OneOf, Program, Several
from aotair_runtime.format.several import own_debug_file, own_golden_file

from .disk.place import refusals
from .pack import check_written, lay_down, pack, read_back, write_pages, write_tensors
from .program import Built
from .prove.prove import Proved
from .stored_once import stored_once


def lay_down_all(built: Sequence[Built], folder: Path) -> list[Artifact]:
    """Write the programs, unproved, and their weights, once, into `folder`; returns what a node would read there for
    each mesh, which is what has to be proved."""
    if len(built) == 1:
        return [lay_down(built[0], folder)]
    once = stored_once(built)
    with refusals(folder):
        weights = write_tensors(once.weights, folder / WEIGHTS_FILE)
        (folder / PROGRAM_FILE).write_bytes(_listed(once.programs, (weights,), [()] * len(built)))
    return [read_back(folder, Asked(program.mesh)) for program in once.programs]


def pack_all(
    proved: Sequence[Proved],
    pages: Mapping[str, str],
    folder: Path,
    along: Sequence[File],
    debug: Sequence[DebugData],
) -> list[Program]:
    """Complete the artifact that `lay_down_all` began and whose programs were proved, as `pack` does; returns them as
    written. Golden tensors that all of them have lie in one file."""
    if len(proved) == 1:
        return [pack(proved[0], pages, folder, along, debug[0])]
    common = _common([one.golden for one in proved])
    with refusals(folder):
        golden = write_tensors(common, folder / GOLDEN_FILE)
        own = [_own_golden(one, common, folder) for one in proved]
        first = proved[0].program
        weights = next(file for file in first.files if file.name == WEIGHTS_FILE)
        shared = (weights, golden, *along)
        content = _listed([one.program for one in proved], shared, own)
        (folder / PROGRAM_FILE).write_bytes(content)
        for number, data in enumerate(debug):
            if data.made:
                (folder / own_debug_file(number)).write_bytes(debug_data.dump(data, content))
        write_pages(pages, folder)
    return [replace(one.program, files=(*shared, *files)) for one, files in zip(proved, own, strict=True)]


def check_all(folder: Path, programs: Sequence[Program], allowed: Allowed, where: str, jobs: int) -> None:
    """What lies on disk loads and answers for each mesh, as `check_written` demands. Raises ProofError."""
    for program in programs:
        check_written(folder, allowed, where, jobs, Asked(program.mesh))


def _listed(programs: Sequence[Program], files: Sequence[File], golden: Sequence[tuple[File, ...]]) -> bytes:
    """The bytes of `program.msgpack`. What each program has `beside` it goes into the list."""
    members = tuple(
        OneOf(program.mesh, own, program.beside.pieces, codec.dump_body(replace(program, files=())))
        for program, own in zip(programs, golden, strict=True)
    )
    first = programs[0]
    return codec.dump_several(Several(first.name, first.beside.stored, tuple(files), members))


def _common(golden: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The golden tensors that are equal for all programs."""
    first, *others = golden
    return {
        name: tensor
        for name, tensor in first.items()
        if all(name in other and _equal(tensor, other[name]) for other in others)
    }


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and same_bytes((one, other))


def _own_golden(proved: Proved, common: Mapping[str, torch.Tensor], folder: Path) -> tuple[File, ...]:
    """The file of the golden tensors that this program has and not all others; none where there are no such."""
    own = {name: tensor for name, tensor in proved.golden.items() if name not in common}
    if not own:
        return ()
    return (write_tensors(own, folder / own_golden_file(proved.program.beside.number)),)
