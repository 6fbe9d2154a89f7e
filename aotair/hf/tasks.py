"""What a checkpoint can be built for: each task makes a model with methods, and describes their inputs as a recipe
does. A task is one file, named here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from aotair_runtime.format.torch_names import dtype as dtype_of

from ..errors import ModelError, RecipeError
from ..recipe.entry import EntryJob
from ..target.target import Target
from . import feature_extraction, text_generation
from .prompts import takes, tokens_of
from .source import Source, open_source, tokenizer, write_companions


class Task(Protocol):
    """`NAME` as the hub has it. `OPTIONS`: what `model.kwargs` may say, with its default."""

    NAME: str
    OPTIONS: Mapping[str, object]

    def serves(self, source: Source) -> bool:
        """Whether the checkpoint is one for this task."""

    def make(
        self, source: Source, dtype: torch.dtype, target: Target, options: Mapping[str, Any], where: str
    ) -> torch.nn.Module:
        """The model, in evaluation mode, for a target. Raises ModelError."""

    def shown(self, source: Source) -> dict[str, object]:
        """The options that a first recipe shows, with their values."""

    def prompted(self, ids: Sequence[int], entry: EntryJob) -> dict[str, torch.Tensor]:
        """A call of an entry point with these tokens, as many of them as it takes."""

    def parts(
        self, source: Source, options: Mapping[str, Any], device: str, dtype: torch.dtype, int8_cache: bool = False
    ) -> dict[str, Any]:
        """What a recipe says of the model's methods: `inputs` and `buckets`, or `entry_points` that have theirs.
        `int8_cache`: whether the recipe asks for keys and values in int8."""


_TASKS: tuple[Task, ...] = (text_generation, feature_extraction)


def task_of(source: Source, name: str | None, where: str) -> Task:
    """The task of that name, or the first that serves the checkpoint. Raises ModelError."""
    known = ", ".join(task.NAME for task in _TASKS)
    if name is not None and name not in {task.NAME for task in _TASKS}:
        raise ModelError("model.task: there is no such task", where=where, expected=known, got=name)
    fitting = [task for task in _TASKS if name in (None, task.NAME) and task.serves(source)]
    if not fitting:
        kinds = ", ".join(source.config.architectures or [type(source.config).__name__])
        raise ModelError(
            "model.task: the checkpoint is for something else",
            where=where,
            expected=f"a checkpoint for {name or known}",
            got=kinds,
            fix="write a factory that returns the model, and describe its inputs (aotair init FACTORY)",
        )
    return fitting[0]


def complete(written: dict[str, Any], folder: Path, where: str) -> dict[str, Any]:
    """A recipe with `model.pretrained`, as plain data, with what its task adds wherever the recipe says nothing: the
    inputs of its methods, and buckets. Raises ModelError."""
    model = written["model"]
    source = open_source(folder / model["pretrained"], where)
    task = task_of(source, model.get("task"), where)
    device = (written.get("target") or {}).get("device") or "cpu"
    options = _options(task, model.get("kwargs") or {}, where)
    int8_cache = (written.get("quantize") or {}).get("kv_cache") is not None
    parts = task.parts(source, options, device, _dtype(source, model.get("dtype")), int8_cache)
    asked = written.get("entry_points") or {}
    if "entry_points" in parts:
        offered = parts.pop("entry_points")
        if unknown := [name for name in asked if name not in offered and not asked[name].get("inputs")]:
            raise RecipeError(
                f"entry_points.{unknown[0]}: the task {task.NAME} has no such method",
                where=where,
                expected=", ".join(offered),
                fix="rename it, or describe its inputs and method",
            )
        chosen = asked or {name: {} for name in task_defaults(task)}
        written = written | {"entry_points": {name: _over(offered.get(name, {}), chosen[name]) for name in chosen}}
    written = _over(parts, written)
    return written | {"model": {**model, "task": task.NAME}}


def bring(path: str, folder: Path, into: Path) -> None:
    """Write what belongs to a checkpoint beside its weights into a directory: tokenizer, templates, configurations."""
    write_companions(open_source(folder / path, "model.pretrained"), into)


def described(task: Task, source: Source, where: str) -> dict[str, Any]:
    """What a first recipe shows of a task, to be changed: its options with their values, and the buckets."""
    parts = task.parts(source, _options(task, {}, where), "cpu", _dtype(source, None))
    options = {"kwargs": task.shown(source)} if task.OPTIONS else {}
    if "entry_points" not in parts:
        return {"model": options, "buckets": parts["buckets"]}
    chosen = {name: {"buckets": parts["entry_points"][name]["buckets"]} for name in task_defaults(task)}
    return {"model": options, "entry_points": chosen}


def task_defaults(task: Task) -> tuple[str, ...]:
    """The entry points that are built where a recipe names none."""
    return getattr(task, "DEFAULTS", ())


def make(
    path: str, task: str, dtype: str | None, target: Target, folder: Path, where: str, **kwargs: object
) -> torch.nn.Module:
    """The model of a completed recipe, as a factory makes it: `dtype` None is the checkpoint's own."""
    source = open_source(folder / path, where)
    chosen = task_of(source, task, where)
    if source.is_gguf:
        tokenizer(source, where)  # it travels with the model: where it cannot be read, that is known before a build
    return chosen.make(source, _dtype(source, dtype), target, _options(chosen, kwargs, where), where)


def _dtype(source: Source, asked: str | None) -> torch.dtype:
    """What the recipe asks for, or the checkpoint's own."""
    own: torch.dtype | None = getattr(source.text_config, "dtype", None)
    return dtype_of(asked) if asked else own or torch.float32


def prompts(
    path: str, task: str, texts: list[str] | None, folder: Path, where: str, entry: EntryJob
) -> list[dict[str, torch.Tensor]]:
    """Calls of an entry point with the tokens of texts, those of them that it takes; `texts` None are ours. Raises
    ModelError where texts are given and the checkpoint has no tokenizer."""
    source = open_source(folder / path, where)
    chosen = task_of(source, task, where)
    calls = [chosen.prompted(ids, entry) for ids in tokens_of(source, texts, where)]
    return [call for call in calls if takes(entry, call)]


def _options(task: Task, given: Mapping[str, object], where: str) -> dict[str, object]:
    if unknown := [name for name in given if name not in task.OPTIONS]:
        raise ModelError(
            f"model.kwargs.{unknown[0]}: the task {task.NAME} has no such option",
            where=where,
            expected=", ".join(task.OPTIONS),
        )
    return {**task.OPTIONS, **given}


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` where it says something, else `below`; dicts of inputs are joined key by key."""
    found = {name: value for name, value in above.items() if value not in (None, {}, [])}
    joined = {
        name: {**below[name], **found[name]} if name == "inputs" else found[name] for name in found if name in below
    }
    return {**below, **found, **joined}
