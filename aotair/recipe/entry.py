"""One entry point of a job: its inputs, constants, dimensions and buckets, in one form whether the recipe has one or
several."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from aotair_runtime.format.dotted_names import PLAIN
from aotair_runtime.format.schema import Scalar, Tolerance

from .recipe import Buckets, DimensionPart, EntryPart, InputPart, OutputPart, Recipe, read_bound

# By dtype, the narrowest first, after some layers: (atol, rtol) for numbers of the order of one, and the share of the
# greatest number of a row; of float32 that is 64 units in its last place.
_TOLERANCES = {"int8": (5e-2, 5e-2, 5e-2), "bfloat16": (5e-2, 5e-2, 5e-2), "float16": (1e-2, 1e-2, 1e-2)}
_FLOAT32 = (1e-5, 1e-4, 64 * 2.0**-23)


@dataclass(frozen=True)
class EntryJob:
    """`where` is what errors call it; `folder` what paths in it are relative to; `samples` its file of real inputs, or
    None; `prompts` gives calls with the tokens of texts; `tolerance` is that of the proof, and `seed` that of random
    inputs."""

    entry: str
    method: str
    where: str
    folder: Path
    inputs: Mapping[str, InputPart]
    constants: Mapping[str, object]
    types: Mapping[str, str]
    outputs: Mapping[int | str, OutputPart]
    buckets: Buckets
    dimensions: Mapping[str, DimensionPart]
    samples: str | None
    tolerance: Tolerance
    seed: int
    prompts: "Callable[[EntryJob], list[dict[str, torch.Tensor]]] | None" = None

    def constant_values(self) -> dict[str, Scalar]:
        """The constants, each plain value under a dotted name of its own."""
        return dict(_leaves(self.constants))

    def dims(self) -> tuple[str, ...]:
        """The dynamic dimensions, in the order in which the inputs name them."""
        return tuple(dict.fromkeys(d for item in self.inputs.values() for d in item.shape if isinstance(d, str)))

    def paddable(self, dim: str) -> bool:
        """Whether calls may be smaller than their bucket along `dim`: every input that has it says how to pad."""
        return all(item.pads(dim) for item in self.inputs.values() if dim in item.shape)

    def least(self, dim: str) -> int:
        """The smallest size of a call along `dim`, as far as it is known; no range may be empty."""
        found = self.dimensions[dim].min if dim in self.dimensions else None
        ranges = [item.range for item in self.inputs.values() if item.range]
        bounds = [(low, *read_bound(high)) for low, high in ranges if isinstance(high, str)]
        more = [int(low) + 1 - added for low, named, added in bounds if named == dim]
        return max(1, found or 1, *more)

    def inputs_at(self, sizes: Mapping[str, int]) -> dict[str, InputPart]:
        """The inputs where the dimensions have these sizes."""
        return {name: item.at(sizes) for name, item in self.inputs.items()}

    def bucket_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Every bucket as sizes in the order of `dims()`, smallest first."""
        dims = self.dims()
        buckets: Iterable[tuple[int, ...]]
        if isinstance(self.buckets, dict):
            buckets = itertools.product(*(self.buckets[dim] for dim in dims))
        else:
            buckets = (tuple(bucket[dim] for dim in dims) for bucket in self.buckets)
        return tuple(sorted(set(buckets))) or ((),)

    def smaller_calls(self) -> list[tuple[int, ...]]:
        """Sizes of padded calls, one for each padded dimension that has the same size in all buckets: what follows from
        such a dimension, and what is a number of its own, shows there alone."""
        largest, found = self.bucket_sizes()[-1], []
        for number, dim in enumerate(self.dims()):
            size = max(self.least(dim), largest[number] // 2)
            same = len({bucket[number] for bucket in self.bucket_sizes()}) == 1
            if same and self.paddable(dim) and size < largest[number]:
                found.append((*largest[:number], size, *largest[number + 1 :]))
        return found

    def bucket_name(self, sizes: Iterable[int]) -> str:
        """What a bucket is called: `batch=1, seq=16`, or `static`."""
        return ", ".join(f"{dim}={size}" for dim, size in zip(self.dims(), sizes)) or "static"

    def with_least(self, sizes: Mapping[str, int]) -> "EntryJob":
        """The same, with smallest sizes of calls along some dimensions."""
        found = {dim: DimensionPart(min=size) for dim, size in sizes.items()}
        return replace(self, dimensions={**self.dimensions, **found})


def entry_jobs(recipe: Recipe) -> tuple[EntryJob, ...]:
    """The entry points of a recipe; the only one of a recipe without `entry_points` is `forward`."""
    parts: Mapping[str, EntryPart | Recipe] = recipe.entry_points or {"forward": recipe}
    tolerance = _tolerance(recipe)
    return tuple(
        EntryJob(
            name,
            part.method if isinstance(part, EntryPart) else "forward",
            recipe.where if name == "forward" else f"{recipe.where}: entry_points.{name}",
            recipe.folder,
            part.inputs,
            part.constants,
            part.types,
            part.outputs,
            part.buckets,
            part.dimensions,
            part.samples if isinstance(part, EntryPart) else recipe.verify.samples,
            tolerance,
            recipe.verify.seed,
        )
        for name, part in parts.items()
    )


def golden_tolerance(recipe: Recipe) -> Tolerance:
    """How far a node's answers may be from the golden ones. Its kernels may be others than the build machine's: what
    the proof takes in scale alone, this takes in numbers too."""
    return _given(recipe) or Tolerance(*_by_dtype(recipe))


def _tolerance(recipe: Recipe) -> Tolerance:
    """That of the proof: what `verify` says, else relative to the greatest number of each row."""
    return _given(recipe) or Tolerance(0.0, 0.0, _by_dtype(recipe)[2])


def _given(recipe: Recipe) -> Tolerance | None:
    """What `verify` says, the other of both by dtype; None where it says neither."""
    given, (atol, rtol, _) = recipe.verify, _by_dtype(recipe)
    if given.atol is None and given.rtol is None:
        return None
    return Tolerance(atol if given.atol is None else given.atol, rtol if given.rtol is None else given.rtol)


def _by_dtype(recipe: Recipe) -> tuple[float, float, float]:
    """Those of the narrowest dtype of model, inputs, and products by a kernel of a narrower one. Where activations are
    rounded to int8, the last bit of a float may move a number by a whole step."""
    parts = recipe.entry_points.values() if recipe.entry_points else (recipe,)
    kinds = {recipe.model.dtype, *(item.dtype for part in parts for item in part.inputs.values())} - {"int8"}
    weights_alone = recipe.quantize is not None and recipe.quantize.any_weight_only
    if recipe.config.experimental_config.precision == "bf16" or (weights_alone and recipe.target.device == "cpu"):
        kinds.add("bfloat16")
    if recipe.quantize is not None and recipe.quantize.rounds_activations:
        kinds.add("int8")
    return next((found for kind, found in _TOLERANCES.items() if kind in kinds), _FLOAT32)


def _leaves(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    for name, value in values.items():
        if isinstance(value, (list, dict)):
            items = value if isinstance(value, dict) else {str(place): item for place, item in enumerate(value)}
            yield from _leaves(items, f"{prefix}{name}.")
        else:
            assert isinstance(value, PLAIN), "refused when the recipe was read"
            yield f"{prefix}{name}", value
