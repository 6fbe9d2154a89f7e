"""The artifact's directory: written aside, checked by the runtime, renamed into place; the same input, same bytes."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import safetensors.torch

from aotair_runtime import codec
from aotair_runtime.artifact import digest
from aotair_runtime.schema import GOLDEN_FILE, PROGRAM_FILE, REPORT_FILE, WEIGHTS_FILE, File, Program

from .errors import RecipeError
from .program import Built
from .prove import Proved


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


def pack(built: Built, proved: Proved, report: str, folder: Path) -> Program:
    """Write the artifact's files into `folder`; returns the program as written."""
    safetensors.torch.save_file(dict(built.weights), folder / WEIGHTS_FILE)
    golden = {name: tensor.contiguous().clone() for name, tensor in proved.golden.items()}
    safetensors.torch.save_file(golden, folder / GOLDEN_FILE)
    files = []
    for name in (WEIGHTS_FILE, GOLDEN_FILE):
        file = folder / name
        os.chmod(file, 0o644)
        files.append(File(name, file.stat().st_size, digest(file)))
    program = replace(proved.program, files=tuple(files))
    (folder / PROGRAM_FILE).write_bytes(codec.dump(program))
    (folder / REPORT_FILE).write_text(report, encoding="utf-8")
    return program


def _check_target(out: Path) -> None:
    if out.exists() and not (out / PROGRAM_FILE).is_file():
        raise RecipeError(
            "something else is already there", where=str(out), expected="an artifact to replace, or nothing",
            fix="choose another place with -o",
        )  # fmt: skip


def _replace(aside: Path, out: Path) -> None:
    if not out.exists():
        os.replace(aside, out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    os.replace(out, old / out.name)
    os.replace(aside, out)
    shutil.rmtree(old)
