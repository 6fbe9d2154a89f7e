"""Data files that travel with an artifact, under `files/`: a tokenizer, templates, labels. The runtime does not read
them; whoever does gets the bytes that the build wrote, or an error."""

import re
from pathlib import Path

from ..errors import AotairError
from ..format.schema import COMPANIONS, File, Program
from .digests import check_file

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
    """Where that file of the artifact at `path` lies, its bytes checked. Raises AotairError, TruncatedError or
    AlteredError."""
    found = companions(program)
    if name not in found:
        raise AotairError(
            "the artifact has no such file",
            where=str(path),
            expected=", ".join(found) or "none has been given",
            got=name,
        )
    check_file(path, found[name])
    return path / found[name].name
