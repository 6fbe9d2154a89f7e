"""The artifact's directory: written aside, checked by the runtime, renamed into place; the same input, same bytes."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import safetensors.torch
import torch

from aotair_runtime.artifact.companions import is_companion
from aotair_runtime.artifact.digests import described
from aotair_runtime.artifact.open import Artifact, open_artifact
from aotair_runtime.errors import AotairError, ArtifactError
from aotair_runtime.format import codec
from aotair_runtime.format.schema import (
    COMPANIONS,
    GOLDEN_FILE,
    PROGRAM_FILE,
    REPORT_FILE,
    WEIGHTS_FILE,
    File,
    Program,
)
from aotair_runtime.weights.golden import replay_golden

from .errors import InternalError, ProofError, RecipeError
from .graph.resolve import resolved
from .program import Built
from .prove.prove import Proved, on_host
from .recipe.job import Job

# How a node may load an artifact, where that changes the way of a call. The proof has its inputs and outputs copied.
_WAYS = (
    {"clone_input": True, "enable_output_clone": False},
    {"clone_input": False, "enable_output_clone": False, "disable_mempool_reuse_in_same_fx": True},
    {"clone_input": False, "enable_output_clone": True},
)


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


def pack(proved: Proved, report: str, folder: Path, along: Sequence[File] = ()) -> Program:
    """Complete the artifact that `lay_down` began and that was proved, with the files that travel `along` and lie there
    already; returns the program as written."""
    golden = _written(proved.golden, folder / GOLDEN_FILE)
    program = replace(proved.program, files=(*proved.program.files, golden, *along))
    (folder / PROGRAM_FILE).write_bytes(codec.dump(program))
    (folder / REPORT_FILE).write_text(report, encoding="utf-8")
    return program


def take_along(job: Job, folder: Path) -> tuple[File, ...]:
    """Copy the files that travel along: those of a checkpoint, and over them those that the recipe names."""
    into = folder / COMPANIONS
    into.mkdir()
    if job.companions is not None:
        job.companions(into)
    for file in job.files:
        try:
            shutil.copyfile(file, into / file.name)
        except OSError as error:
            raise RecipeError(f"files: {file} cannot be read: {error.strerror}", where=job.where) from error
    found = []
    for file in sorted(into.iterdir()):
        name = f"{COMPANIONS}/{file.name}"
        if not is_companion(name) or not file.is_file():
            raise RecipeError(
                "files: no file of that name travels with an artifact",
                where=job.where,
                expected="letters, digits, dots, dashes, spaces and underscores",
                got=repr(file.name),
                fix="rename it",
            )
        os.chmod(file, 0o644)
        found.append(replace(described(file), name=name))
    if not found:
        into.rmdir()
    return tuple(found)


def check_written(folder: Path, where: str) -> None:
    """What lies on disk loads and answers, however a node loads it. Raises ProofError."""
    artifact = open_artifact(folder)
    for options in _WAYS:
        chosen = ", ".join(f"{option}={value}" for option, value in options.items())
        try:
            with on_host(artifact, **options) as model:
                wrong = [result for result in replay_golden(model) if not result.within]
        except AotairError as error:
            raise ProofError(
                f"the written artifact cannot be used with {chosen}: {error.what}",
                where=error.where or where,
                expected=error.expected or "an artifact that loads with each option",
                got=error.got,
                fix=error.fix,
            ) from error
        except Exception as error:
            raise InternalError(f"the written artifact fails with {chosen}: {error}") from error
        if wrong:
            raise ProofError(
                f"the written artifact answers differently with {chosen}",
                where=f"{where}: {wrong[0].entry}, bucket {wrong[0].bucket}",
                expected="the original model's outputs",
                got=f"an error of {wrong[0].max_abs_error:.3g}",
            )


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
