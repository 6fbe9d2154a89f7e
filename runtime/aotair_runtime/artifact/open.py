"""An artifact on disk, opened: checked first, believed after."""

from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch

from ..errors import MalformedError, NotAnArtifactError
from ..format import codec
from ..format.rules import check_program
from ..format.schema import GOLDEN_FILE, PROGRAM_FILE, WEIGHTS_FILE, Program
from ..format.torch_names import dtype
from .companions import is_companion
from .digests import check_file


@dataclass(frozen=True)
class Artifact:
    """A checked program and its constants, in the program's order; the constants are mapped, not copied."""

    path: Path
    program: Program
    constants: tuple[torch.Tensor, ...]


def open_artifact(path: str | Path) -> Artifact:
    """Read and check everything but the golden tensors and what travels along; raises a subclass of ArtifactError."""
    return with_weights(Path(path), read_program(Path(path)))


def with_weights(path: Path, program: Program) -> Artifact:
    """The artifact at `path`, whose `program` has been read, with its weights checked and mapped."""
    for file in program.files:
        if file.name == WEIGHTS_FILE:  # the others are checked by whoever reads them
            check_file(path, file)
    return Artifact(path, program, _map_weights(path, program))


def read_program(path: Path) -> Program:
    """The checked program of the artifact at `path`, without looking at its other files' contents."""
    if not path.exists():
        raise NotAnArtifactError("there is nothing at this path", where=str(path))
    file = path / PROGRAM_FILE
    if not file.is_file():
        raise NotAnArtifactError(
            "this is not an artifact",
            where=str(path),
            expected=f"a directory that holds {PROGRAM_FILE}",
            fix="build one with: aotair build RECIPE",
        )
    program = codec.parse(file.read_bytes(), str(file))
    check_program(program, str(file))
    names = [entry.name for entry in program.files]
    tensors = {name for name in names if not is_companion(name)}
    if len(set(names)) != len(names) or not {WEIGHTS_FILE} <= tensors <= {WEIGHTS_FILE, GOLDEN_FILE}:
        raise MalformedError("program.files breaks a rule of the format", where=str(file), got=repr(names))
    return program


def read_golden(artifact: Artifact) -> dict[str, torch.Tensor]:
    """The golden tensors by name (`golden.py` says which), after their digest was checked."""
    for file in artifact.program.files:
        if file.name == GOLDEN_FILE:
            check_file(artifact.path, file)
            return read_tensors(artifact.path / file.name)
    raise NotAnArtifactError("the artifact holds no golden tensors", where=str(artifact.path))


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file, mapped; raises MalformedError."""
    try:
        with safetensors.safe_open(str(file), framework="pt") as handle:
            return {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise MalformedError(f"not readable as safetensors: {error}", where=str(file)) from error


def _map_weights(path: Path, program: Program) -> tuple[torch.Tensor, ...]:
    file = path / WEIGHTS_FILE
    tensors = read_tensors(file)
    constants = []
    for constant in program.constants:
        tensor = tensors.get(constant.name)
        if tensor is None or tensor.dtype != dtype(constant.dtype) or tuple(tensor.shape) != constant.shape:
            raise MalformedError(
                f"the weight {constant.name!r} is not what the program expects",
                where=str(file),
                expected=f"{constant.dtype}{list(constant.shape)}",
                got="nothing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}",
            )
        constants.append(tensor)
    return tuple(constants)
