"""A first recipe for a checkpoint on disk: short, and it builds as it stands."""

import os
import re
from pathlib import Path
from typing import Any

import yaml

from .source import open_source
from .tasks import described, task_of

_TASK = "# {task}, of a checkpoint for {architecture}. What it does not say follows from the checkpoint."


def recipe_of(path: Path, task: str | None = None, folder: Path = Path()) -> str:
    """YAML for the checkpoint in a directory, or in a GGUF file, of a recipe that lies in `folder`, from which it says
    where that is. Raises ModelError where it is none."""
    where = "aotair init"
    source = open_source(path, where)
    chosen = task_of(source, task, where)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem if source.is_gguf else path.resolve().name).strip("-.")
    parts = described(chosen, source, where)
    recipe: dict[str, Any] = {
        "name": name.lower() or "model",
        "model": {"pretrained": _seen_from(folder, path), "task": chosen.NAME, "dtype": "float32", **parts["model"]},
        "target": {"device": "cpu"},
    }
    recipe |= {key: value for key, value in parts.items() if key != "model"}
    text = yaml.safe_dump(recipe, sort_keys=False, default_flow_style=None, width=110)
    kind = ", ".join(source.config.architectures or [type(source.config).__name__])
    return f"{_TASK.format(task=chosen.NAME, architecture=kind)}\n{text}"


def _seen_from(folder: Path, path: Path) -> str:
    """A path that is not absolute as it is from another folder than this one."""
    if path.is_absolute() or folder.resolve() == Path.cwd():
        return str(path)
    return os.path.relpath(path.resolve(), folder.resolve())
