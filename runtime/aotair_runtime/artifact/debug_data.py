"""Where do the instructions of an artifact come from? Read when somebody asks, and never by a load."""

import hashlib

from ..errors import AlteredError
from ..format.debug_data import DebugData, parse
from ..format.limits import MOST_DEBUG_BYTES, MOST_PROGRAM_BYTES
from ..format.schema import DEBUG_FILE, PROGRAM_FILE
from .folder import Folder
from .open import Artifact


def read_debug_data(artifact: Artifact) -> DebugData:
    """What the artifact's `debug.msgpack` says of its instructions; of one that has no such file, that nothing is
    known. Raises a subclass of ArtifactError where the file is there and is not good."""
    folder = artifact.folder or Folder(artifact.path)
    if not folder.has(DEBUG_FILE):
        return DebugData()
    file = folder.file(DEBUG_FILE)
    content, program = file.content(MOST_DEBUG_BYTES), folder.file(PROGRAM_FILE).content(MOST_PROGRAM_BYTES)
    signed = None if artifact.gate is None else artifact.gate.admit(folder, program)
    if signed is not None and signed.get(DEBUG_FILE) != hashlib.sha256(content).hexdigest():
        raise AlteredError("the file is not the one that was signed", where=file.where, fix="copy the artifact again")
    return parse(content, program, len(artifact.program.instructions), file.where)
