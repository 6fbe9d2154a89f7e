"""The artifact's directory: written aside, checked by the runtime, put into place; the same input, same bytes."""

import contextlib
import functools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import safetensors.torch
import torch

from aotair_runtime.artifact.asked import Asked
from aotair_runtime.artifact.companions import is_companion
from aotair_runtime.artifact.digests import described
from aotair_runtime.artifact.open import ONE_RANK, Artifact, open_artifact
from aotair_runtime.confine.op_table import Allowed
from aotair_runtime.errors import AotairError, ArtifactError, UnreadableError
from aotair_runtime.format import codec, debug_data
from aotair_runtime.format.debug_data import DebugData
from aotair_runtime.format.schema import (
    COMPANIONS,
    DEBUG_FILE,
    GOLDEN_FILE,
    PROGRAM_FILE,
    WEIGHTS_FILE,
    File,
    Program,
)
from aotair_runtime.model import Model
from aotair_runtime.weights.golden import Comparison, replay_golden

from .disk.place import new_folder, refusals
from .errors import InternalError, ProofError, RecipeError
from .graph.resolve import resolved
from .program import Built
from .prove.prove import Proved, all_on_host
from .prove.together import AllRanks
from .recipe.job import Job
from .share import shared_out

# How a node may load an artifact, where that changes the way of a call. The proof has its inputs and outputs copied.
_WAYS = (
    {"clone_input": True, "enable_output_clone": False},
    {"clone_input": False, "enable_output_clone": False, "disable_mempool_reuse_in_same_fx": True},
    {"clone_input": False, "enable_output_clone": True},
)


@contextlib.contextmanager
def written_aside(out: Path) -> Iterator[Path]:
    """A directory beside `out` that becomes `out` when the block ends well, and is removed when it does not."""
    with refusals(out):
        _check_target(out)
    with new_folder(out) as folder:
        yield folder


def lay_down(built: Built, folder: Path) -> Artifact:
    """Write the program, unproved, and its weights into `folder`; returns what a node would read there, which is what
    has to be proved."""
    with refusals(folder):
        weights = write_tensors(built.weights, folder / WEIGHTS_FILE)
        (folder / PROGRAM_FILE).write_bytes(codec.dump(replace(built.program, files=(weights,))))
    return read_back(folder)


def read_back(folder: Path, asked: Asked = ONE_RANK) -> Artifact:
    """What a node would read of what was written there. Raises InternalError where it would refuse that."""
    try:
        return open_artifact(folder, asked=asked)
    except UnreadableError:
        raise
    except ArtifactError as error:
        raise InternalError(f"the program that was written cannot be read: {error}") from error


def pack(
    proved: Proved,
    pages: Mapping[str, str],
    folder: Path,
    along: Sequence[File] = (),
    debug: DebugData | None = None,
) -> Program:
    """Complete the artifact that `lay_down` began and that was proved, with the `pages` of its report by their names,
    the files that travel `along` and lie there already, and where its instructions come from, if that is known; returns
    the program as written."""
    with refusals(folder):
        golden = write_tensors(proved.golden, folder / GOLDEN_FILE)
        program = replace(proved.program, files=(*proved.program.files, golden, *along))
        content = codec.dump(program)
        (folder / PROGRAM_FILE).write_bytes(content)
        if debug is not None and debug.made:
            (folder / DEBUG_FILE).write_bytes(debug_data.dump(debug, content))
        write_pages(pages, folder)
    return program


def write_pages(pages: Mapping[str, str], folder: Path) -> None:
    """The pages of a report, by their names."""
    for name, page in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(page, encoding="utf-8")


def take_along(job: Job, folder: Path) -> tuple[File, ...]:
    """Copy the files that travel along: those of a checkpoint, and over them those that the recipe names."""
    into = folder / COMPANIONS
    with refusals(into):
        into.mkdir()
        if job.companions is not None:
            job.companions(into)
    for file in job.files:
        _copy(file, into / file.name, job.where)
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


def _copy(file: Path, to: Path, where: str) -> None:
    try:
        source = file.open("rb")
    except OSError as error:
        raise RecipeError(f"files: {file} cannot be read: {error.strerror}", where=where) from error
    with source, refusals(to), to.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)


def check_written(folder: Path, allowed: Allowed, where: str, jobs: int = 1, asked: Asked = ONE_RANK) -> None:
    """What lies on disk loads and answers, however a node loads it that allows this; of programs for several meshes
    that which is `asked` for. Raises ProofError."""
    artifact = open_artifact(folder, asked=asked)
    shared_out([functools.partial(_check_loaded, artifact, allowed, where, options) for options in _WAYS], jobs)


def _check_loaded(artifact: Artifact, allowed: Allowed, where: str, options: Mapping[str, bool]) -> None:
    chosen = ", ".join(f"{option}={value}" for option, value in options.items())
    try:
        with all_on_host(artifact, allowed, **options) as model:
            wrong = [result for result in _replayed(model) if not result.within]
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


def _replayed(model: Model | AllRanks) -> Iterator[Comparison]:
    return model.replay_golden() if isinstance(model, AllRanks) else replay_golden(model)


def write_tensors(tensors: Mapping[str, torch.Tensor], file: Path) -> File:
    """Write these tensors into a file, which is described; those that look at the same memory are written apart."""
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
