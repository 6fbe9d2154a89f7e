"""The artifact's directory: written aside, checked by the runtime, renamed into place; the same input, same bytes."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import safetensors.torch
import torch

from aotair_runtime.artifact.digests import described
from aotair_runtime.artifact.open import Artifact, open_artifact
from aotair_runtime.errors import ArtifactError
from aotair_runtime.format import codec
from aotair_runtime.format.schema import GOLDEN_FILE, PROGRAM_FILE, REPORT_FILE, WEIGHTS_FILE, File, Program

from .errors import InternalError, RecipeError
from .graph.resolve import resolved
from .program import Built
from .prove.prove import Proved


@contextlib.contextmanager
def written_aside(out: Path) -> Iterator[Path]:
    """A directory beside `out` that becomes `out` when the block ends well, and is removed when it does not."""
    _check_target(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield aside
        os.chmod(aside, 0o755)
        _replace(aside, out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def lay_down(built: Built, folder: Path) -> Artifact:
    """Write the program, unproved, and its weights into `folder`; returns what a node would read there, which is what
    has to be proved."""
    weights = _written(built.weights, folder / WEIGHTS_FILE)
    (folder / PROGRAM_FILE).write_bytes(codec.dump(replace(built.program, files=(weights,))))
    try:
        return open_artifact(folder)
    except ArtifactError as error:
        raise InternalError(f"the program that was written cannot be read: {error}") from error


def pack(proved: Proved, report: str, folder: Path) -> Program:
    """Complete the artifact that `lay_down` began and that was proved; returns the program as written."""
    golden = _written(proved.golden, folder / GOLDEN_FILE)
    program = replace(proved.program, files=(*proved.program.files, golden))
    (folder / PROGRAM_FILE).write_bytes(codec.dump(program))
    (folder / REPORT_FILE).write_text(report, encoding="utf-8")
    return program


def _written(tensors: Mapping[str, torch.Tensor], file: Path) -> File:
    """The file with these tensors; those that look at the same memory are written apart."""
    own, seen = {}, set()
    for name, tensor in tensors.items():
        memory, plain = tensor.untyped_storage().data_ptr(), resolved(tensor).contiguous()
        own[name] = plain.clone() if memory in seen and plain.nbytes else plain
        seen.add(memory)
    safetensors.torch.save_file(own, file)
    os.chmod(file, 0o644)
    return described(file)


def _check_target(out: Path) -> None:
    if out.exists() and not (out / PROGRAM_FILE).is_file():
        raise RecipeError(
            "something else is already there",
            where=str(out),
            expected="an artifact to replace, or nothing",
            fix="choose another place with -o",
        )


def _replace(aside: Path, out: Path) -> None:
    if not out.exists():
        os.replace(aside, out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    os.replace(out, old / out.name)
    os.replace(aside, out)
    shutil.rmtree(old)
