"""Data files that travel with an artifact, under `files/`: a tokenizer, templates, labels. The runtime does not read
them; whoever does gets the bytes that the build wrote, or an error."""

import re
from pathlib import Path

from ..errors import AotairError
from ..format.limits import MOST_COMPANION_BYTES
from ..format.schema import COMPANIONS, File, Program
from .digests import check_file, check_length, of_memory
from .folder import Folder

# A name on its own, that no system takes for a path, a device or something hidden.
_NAME = re.compile(rf"{COMPANIONS}/[A-Za-z0-9_][A-Za-z0-9_. -]{{0,200}}(?<![. ])")


def is_companion(name: str) -> bool:
    """Whether a file of that name may travel with an artifact."""
    return _NAME.fullmatch(name) is not None


def companions(program: Program) -> dict[str, File]:
    """The files by their own names, without the folder's."""
    found = (file for file in program.files if is_companion(file.name))
    return {file.name.removeprefix(f"{COMPANIONS}/"): file for file in found}


def companion(path: Path, program: Program, name: str) -> Path:
    """Where that file of the artifact at `path` lies, its bytes checked; who opens it later may find others there
    (`read_companion` does not). Raises AotairError or an ArtifactError."""
    file = _listed(path, program, name)
    folder = Folder(path)
    try:
        check_file(folder.file(file.name), file)
    finally:
        folder.close()
    return path / file.name


def read_companion(place: Path | Folder, program: Program, name: str) -> bytes:
    """The bytes of that file of an artifact, at a path or in a folder that is open, checked. Raises AotairError or an
    ArtifactError."""
    folder = Folder(place) if isinstance(place, Path) else place
    file = _listed(folder.path, program, name)
    there = folder.file(file.name)
    check_length(there, file)
    content = there.content(MOST_COMPANION_BYTES)
    check_file(there, file, read=of_memory(memoryview(content)))
    return content


def check_companions(place: Path | Folder, program: Program) -> None:
    """Raises an ArtifactError where a file that travels along is not what the build wrote."""
    folder = Folder(place) if isinstance(place, Path) else place
    for file in companions(program).values():
        check_file(folder.file(file.name), file)


def _listed(path: Path, program: Program, name: str) -> File:
    found = companions(program)
    if name not in found:
        raise AotairError(
            "the artifact has no such file",
            where=str(path),
            expected=", ".join(found) or "none has been given",
            got=name,
        )
    return found[name]
