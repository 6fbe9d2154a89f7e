"""Another artifact's program with the weights of a second checkpoint: does it fit, and which tensor goes where?"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from aotair_runtime.artifact.checkpoint import same_bytes
from aotair_runtime.artifact.debug_data import read_debug_data
from aotair_runtime.artifact.open import Artifact, opened
from aotair_runtime.format.prologue import tensors
from aotair_runtime.format.schema import Constant, Origin, Program

from .errors import RecipeError
from .export.exported import Exported
from .model.tied_names import Names
from .program import Built
from .recipe.job import Job
from .stored import derived_values

_DIFFERS = {
    "versions": "it was built with other versions",
    "recipe": "it was built from another recipe (only name, model.weights, verify.seed, verify.level may differ)",
    "code": "the recipe's passes or fusion rules have changed since",
    "graph": "the model exports another graph, other names, shapes or dtypes of weights, or entries otherwise ordered",
}


def built_like(path: Path, exported: Sequence[Exported], job: Job, origin: Origin) -> Built:
    """The program of the artifact at `path`, under the recipe's name, with the exported model's weights.

    Raises RecipeError where a build of the recipe might make another program, and an ArtifactError where there is no
    good artifact at `path`.
    """
    folder, other = opened(path)
    with contextlib.closing(folder):
        debug = read_debug_data(Artifact(path, other, (), folder))
    _check_origin(other.origin, origin, path)
    found = {c.name: c.tensor for graph in exported for c in (*graph.constants.values(), *graph.states.values())}
    states = {constant.name for graph in exported for constant in graph.states.values()}
    names = exported[0].names  # the model's
    values = {item.name: _value(item, found, names, path) for item in tensors(other) if item.kind != "derived"}
    values |= derived_values(other, values.__getitem__)
    weights = {constant.name: values[constant.name] for constant in other.constants}
    # Aside from the model's own: a state goes on changing there.
    weights = {name: value.clone() if name in states else value for name, value in weights.items()}
    return Built(_fresh(other, job), weights, {}, debug)


def _fresh(other: Program, job: Job) -> Program:
    """Without what belongs to the other weights."""
    entries = tuple(
        replace(entry, buckets=tuple(replace(bucket, proof=None) for bucket in entry.buckets))
        for entry in other.entry_points
    )
    return replace(other, name=job.name, entry_points=entries, files=())


def _check_origin(other: Origin, mine: Origin, path: Path) -> None:
    fix = "build without --like"
    if Origin() in (other, mine):
        what = (
            "it does not say"
            if other == Origin()
            else "the model is an object, or sources of passes or rules are not found"
        )
        raise RecipeError(f"--like: whether the artifact fits is not known: {what}", where=str(path), fix=fix)
    for field, what in _DIFFERS.items():
        if getattr(other, field) != getattr(mine, field):
            versions = {"expected": mine.versions, "got": other.versions} if field == "versions" else {}
            raise RecipeError(f"--like: the artifact does not fit: {what}", where=str(path), fix=fix, **versions)


def _value(constant: Constant, found: Mapping[str, torch.Tensor], model: Names, path: Path) -> torch.Tensor:
    """The new value of a constant; those of all names that it stands for have to be equal."""
    names = [name for group in constant.names for name in group[:1]]
    tensors = []
    for name in names:
        tensor = _tensor(name, found, model)
        if tensor is None or (_dtype(tensor), tuple(tensor.shape)) != (constant.dtype, constant.shape):
            raise RecipeError(f"--like: the model has no {name} like the artifact's", where=str(path))
        tensors.append(tensor)
    for name, tensor in zip(names[1:], tensors[1:]):
        if not same_bytes((tensors[0], tensor)):
            raise RecipeError(
                f"--like: {names[0]} and {name} are one tensor in the artifact and differ in this model",
                where=str(path),
                expected="weights that are equal wherever the artifact's were",
                fix="build without --like, or both artifacts with model.share_equal_weights: false",
            )
    if not tensors:
        raise RecipeError(f"--like: the artifact does not say what {constant.name} stands for", where=str(path))
    return tensors[0].detach().contiguous()


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _tensor(name: str, found: Mapping[str, torch.Tensor], model: Names) -> torch.Tensor | None:
    return next((found[one] for one in model.group(name) if one in found), None)
