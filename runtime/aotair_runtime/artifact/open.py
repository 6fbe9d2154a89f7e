"""An artifact on disk, opened: checked first, believed after."""

import contextlib
import functools
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from ..errors import AlteredError, ArtifactError, MalformedError, NotAnArtifactError, TruncatedError, in_line
from ..format import codec
from ..format.limits import MOST_PROGRAM_BYTES, known_names, most_golden_header, most_weights_header
from ..format.mesh import stored_tensors
from ..format.rules import check_program
from ..format.schema import GOLDEN_FILE, PROGRAM_FILE, SIGNATURE_FILE, WEIGHTS_FILE, File, Program, Several
from ..format.several import check_several, own_golden_file, program_of
from ..format.torch_names import dtype
from .asked import Asked
from .companions import is_companion
from .constants import constants_of, in_file
from .digests import Verify, check_file, check_length, of_memory
from .folder import Folder, OpenFile
from .tensors import mapped, tensors_in

SET_ASIDE = ".old"  # how the name ends of what a build sets aside, where two folders cannot change places in one step
_TRIES, _TRIES_OF_TWO_STEPS = 100, 3
_log = logging.getLogger("aotair.runtime")
_Read = TypeVar("_Read")
ONE_RANK = Asked()


class Gate(Protocol):
    """What decides whether an artifact is let in, before anything of it is parsed."""

    def admit(self, folder: Folder, program: bytes) -> Mapping[str, str]:
        """The files that were signed, with their SHA-256; raises a subclass of ArtifactError for one that is not let
        in. `program`: the bytes that will be parsed."""

    def refuse_unsigned(self, path: Path) -> None:
        """Raises UnsignedError where weights without a signature are not let in."""


@dataclass(frozen=True)
class Artifact:
    """A checked program and its constants, in the program's order. `folder` holds its files open; `in_file`: the
    numbers of the constants that lie in the mapped weights file, and are no copies of it. `gate`: what let it in, and
    other weights have to pass. `rank`: whose parts the constants are, where ranks share weights out.
    """

    path: Path
    program: Program
    constants: tuple[torch.Tensor, ...]
    folder: Folder | None = None
    in_file: frozenset[int] = frozenset()
    gate: Gate | None = None
    rank: int = 0


def open_artifact(path: str | Path, rank: int = 0, asked: Asked = ONE_RANK) -> Artifact:
    """Read and check everything but the golden tensors, what travels along and the programs for other meshes; raises a
    subclass of ArtifactError."""
    return with_weights(*opened(Path(path), asked=asked), rank=rank)


def is_artifact(path: Path) -> bool:
    """Whether an artifact, good or bad, is at `path`."""
    for _ in range(_TRIES_OF_TWO_STEPS):
        if (path / PROGRAM_FILE).is_file() or (not os.path.lexists(path) and set_aside(path)):
            return True
    return False


def read_program(path: Path, asked: Asked = ONE_RANK) -> Program:
    """The checked program of the artifact at `path`, without looking at its other files' contents."""
    folder, program = opened(path, asked=asked)
    folder.close()
    return program


def read_programs(path: Path) -> tuple[Program, ...]:
    """The checked programs for all of its meshes."""
    folder, programs = _opened(path, None, _all_programs)
    folder.close()
    return programs


def opened(path: Path, gate: Gate | None = None, asked: Asked = ONE_RANK) -> tuple[Folder, Program]:
    """The folder of the artifact at `path`, with its files open, and its checked program; where it has programs for
    several meshes, that which is `asked` for. Where it is exchanged meanwhile, that is the old one or the new one,
    whole. Raises an ArtifactError, or RankError where no such program is there."""
    return _opened(path, gate, functools.partial(_chosen, asked=asked))


def _opened(path: Path, gate: Gate | None, read: Callable[[Folder, Program | Several], _Read]) -> tuple[Folder, _Read]:
    """The folder, and what is read of its program file."""
    for _ in range(_TRIES_OF_TWO_STEPS):
        folder = _whole(path)
        with folder.closed_on_error():
            try:
                return folder, _found(folder, gate, read)
            except ArtifactError:  # what is opened later a build may remove meanwhile
                if not folder.is_elsewhere():
                    raise
        folder.close()
    folder = _whole(path)
    with folder.closed_on_error():
        return folder, _found(folder, gate, read)


def with_weights(
    folder: Folder,
    program: Program,
    *,
    verify: Verify = "full",
    private: bool = False,
    gate: Gate | None = None,
    rank: int = 0,
) -> Artifact:
    """The artifact in `folder`, whose `program` was read there, and let in by `gate`, with its weights checked and
    mapped, or, `private`, copied: of weights that ranks share out, what `rank` has. Raises a subclass of
    ArtifactError."""
    file, entry, began = folder.file(WEIGHTS_FILE), file_of(program, WEIGHTS_FILE), time.perf_counter()
    check_length(file, entry)
    check_bounds(file, program)
    memory = mapped(file, private=private)
    looked = check_file(file, entry, verify, of_memory(memoryview(memory)) if private else None)
    found = tensors_in(memory, file.where, most_weights_header(program), known_names(program))
    constants = constants_of(found, program, file.where, rank)
    inside = frozenset[int]() if private else in_file(found, constants, program)
    artifact = Artifact(folder.path, program, constants, folder, inside, gate, rank)
    check_unchanged(artifact)
    seconds = max(time.perf_counter() - began, 1e-9)
    text = "%s: %d of %d bytes of weights compared with their digests (%s) in %.3f s, %.2f GB/s"
    _log.info(text, in_line(str(folder.path)), looked, file.nbytes, verify, seconds, looked / seconds / 1e9)
    return artifact


def check_bounds(weights: OpenFile, program: Program) -> None:
    """Raises MalformedError where the file is shorter or longer than the program's constants make it: digests of a hole
    of a terabyte take an hour, and it takes no room on the disk."""
    data = sum(math.prod(tensor.shape) * dtype(tensor.dtype).itemsize for tensor in stored_tensors(program))
    most = 8 + most_weights_header(program) + data
    if not data <= weights.nbytes <= most:
        is_long = weights.nbytes > most
        raise MalformedError(
            f"the file is {'longer' if is_long else 'shorter'} than the program's constants are",
            where=weights.where,
            expected=f"at most {most:,} bytes" if is_long else f"at least {data:,} bytes",
            got=f"{weights.nbytes:,}",
        )


def check_unchanged(artifact: Artifact) -> None:
    """Raises AlteredError or TruncatedError where the file in which the constants lie was written to or cut since they
    were checked: the model computes with other numbers, and its next call may end the process (SIGBUS)."""
    if artifact.folder is None or not artifact.in_file:
        return
    file = artifact.folder.file(WEIGHTS_FILE)
    now, fix = file.state_now(), "load the artifact again; load(private=True) copies the weights"
    if now.nbytes != file.nbytes:
        lengths = {"expected": f"{file.nbytes} bytes", "got": f"{now.nbytes} bytes"}
        raise TruncatedError("the mapped weights have become another length", where=file.where, fix=fix, **lengths)
    if now.written != file.state.written:
        raise AlteredError("the mapped weights were written to", where=file.where, fix=fix)
    if now != file.state:  # rights, a name, a link more or less; or somebody put the time of writing back
        check_file(file, file_of(artifact.program, WEIGHTS_FILE))
        artifact.folder.accept(WEIGHTS_FILE, now)


def read_golden(artifact: Artifact) -> dict[str, torch.Tensor]:
    """The golden tensors by name (`golden.py` says which), after their digest was checked: those that all programs of
    the artifact share, and the program's own."""
    program = artifact.program
    if all(file.name != GOLDEN_FILE for file in program.files):
        raise NotAnArtifactError("the artifact holds no golden tensors", where=str(artifact.path))
    folder, found = artifact.folder or Folder(artifact.path), dict[str, torch.Tensor]()
    for entry in program.files:
        if entry.name in (GOLDEN_FILE, own_golden_file(program.beside.number)):
            file = folder.file(entry.name)
            check_file(file, entry)
            found |= tensors_in(mapped(file), file.where, most_golden_header(program))
    return found


# ---- the folder ------------------------------------------------------------------------------------------------------


def _whole(path: Path) -> Folder:
    """The folder with its files open: a build that takes its place may remove what nobody has opened yet."""
    for _ in range(_TRIES):
        folder = _there(path)
        names = (PROGRAM_FILE, WEIGHTS_FILE, GOLDEN_FILE, SIGNATURE_FILE)
        with folder.closed_on_error():
            if all(folder.has(name) for name in names) or not folder.is_elsewhere():
                return folder
        folder.close()
    return _there(path)


def _there(path: Path) -> Folder:
    """The folder at `path`, or what a build that takes its place in two steps has set aside meanwhile."""
    for _ in range(_TRIES_OF_TWO_STEPS):
        with contextlib.suppress(NotAnArtifactError):
            return Folder(path)
        for aside in set_aside(path):
            with contextlib.suppress(NotAnArtifactError):
                return Folder(aside)
    return Folder(path)


def set_aside(path: Path) -> list[Path]:
    """What a build has set aside of the artifact at `path`, and not put back or removed, because it was ended."""
    try:
        names = os.listdir(path.parent)
    except (OSError, ValueError):
        return []
    mine = [name for name in sorted(names) if name.startswith(f".{path.name}.") and name.endswith(SET_ASIDE)]
    return [path.parent / name for name in mine if (path.parent / name / PROGRAM_FILE).is_file()]


# ---- its files -------------------------------------------------------------------------------------------------------


def _found(folder: Folder, gate: Gate | None, read: Callable[[Folder, Program | Several], _Read]) -> _Read:
    """What `read` makes of the program, or of the list of several, once the gate has let it in and it is checked."""
    if not folder.has(PROGRAM_FILE):
        raise NotAnArtifactError(
            "this is not an artifact",
            where=str(folder.path),
            expected=f"a directory that holds {PROGRAM_FILE}",
            fix="build one with: aotair build RECIPE",
        )
    file = folder.file(PROGRAM_FILE)
    content = file.content(MOST_PROGRAM_BYTES)
    signed = None if gate is None else gate.admit(folder, content)
    found = codec.parse_any(content, file.where)
    if isinstance(found, Several):
        check_several(found, file.where)
    else:
        check_program(found, file.where)
    _check_files(folder, found, signed)
    return read(folder, found)


def _chosen(folder: Folder, found: Program | Several, *, asked: Asked) -> Program:
    """The program that is asked for, with its golden tensors open."""
    where = folder.file(PROGRAM_FILE).where
    if isinstance(found, Program):
        if asked.mesh is not None:
            asked.number([found.mesh], str(folder.path))
        return found
    number = asked.number([one.mesh for one in found.programs], str(folder.path))
    for file in found.programs[number].golden:
        folder.has(file.name)
    return program_of(found, number, where)


def _all_programs(folder: Folder, found: Program | Several) -> tuple[Program, ...]:
    if isinstance(found, Program):
        return (found,)
    where = folder.file(PROGRAM_FILE).where
    return tuple(program_of(found, number, where) for number in range(len(found.programs)))


def _check_files(folder: Folder, found: Program | Several, signed: Mapping[str, str] | None) -> None:
    """The names of the other files, and that they are those which were signed."""
    where, files = folder.file(PROGRAM_FILE).where, found.files
    names = [entry.name for entry in files]
    tensors = {name for name in names if not is_companion(name)}
    if len(set(names)) != len(names) or not {WEIGHTS_FILE} <= tensors <= {WEIGHTS_FILE, GOLDEN_FILE}:
        raise MalformedError("program.files breaks a rule of the format", where=where, got=ascii(names)[:200])
    own = [file for one in found.programs for file in one.golden] if isinstance(found, Several) else []
    for entry in (*files, *own) if signed is not None else ():
        if signed is not None and signed.get(entry.name) != entry.sha256:
            at = str(folder.path / entry.name)
            raise AlteredError("the program lists another file than the one that was signed", where=at)


def file_of(program: Program, name: str) -> File:
    """A file of the artifact, as its program lists it."""
    return next(file for file in program.files if file.name == name)
