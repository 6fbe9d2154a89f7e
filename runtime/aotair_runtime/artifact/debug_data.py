"""Where do the instructions of an artifact come from? Read when somebody asks, and never by a load."""

import hashlib

from ..errors import AlteredError
from ..format.debug_data import DebugData, parse
from ..format.limits import MOST_DEBUG_BYTES, MOST_PROGRAM_BYTES
from ..format.schema import DEBUG_FILE, PROGRAM_FILE
from ..format.several import own_debug_file
from .folder import Folder
from .open import Artifact


def read_debug_data(artifact: Artifact) -> DebugData:
    """What the artifact's `debug.msgpack`, or the file for one of several programs, says of its instructions; where
    there is no such file, that nothing is known. Raises a subclass of ArtifactError where the file is there and is not
    good."""
    folder, beside = artifact.folder or Folder(artifact.path), artifact.program.beside
    name = own_debug_file(beside.number) if beside.meshes else DEBUG_FILE
    if not folder.has(name):
        return DebugData()
    file = folder.file(name)
    content, program = file.content(MOST_DEBUG_BYTES), folder.file(PROGRAM_FILE).content(MOST_PROGRAM_BYTES)
    signed = None if artifact.gate is None else artifact.gate.admit(folder, program)
    if signed is not None and signed.get(name) != hashlib.sha256(content).hexdigest():
        raise AlteredError("the file is not the one that was signed", where=file.where, fix="copy the artifact again")
    return parse(content, program, len(artifact.program.instructions), file.where)
