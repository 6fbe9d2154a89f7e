"""The inputs that a build compares on: random ones within the recipe's ranges, or real ones from a file."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import safetensors.torch
import torch

from aotair_runtime.format.torch_names import dtype

from ..errors import RecipeError
from ..recipe.entry import EntryJob
from ..recipe.recipe import FLOATS, InputPart

Poison = Literal["random"] | bool | int | float
_LARGE = {"float16": 3e4, "bfloat16": 1e30, "float32": 1e30, "float64": 1e30}


def random_inputs(job: EntryJob, sizes: Mapping[str, int], stream: int) -> dict[str, torch.Tensor]:
    """Inputs of the shapes that `sizes` gives to the dimensions; the same for the same recipe, sizes and stream."""
    seed = job.seed
    for value in (stream, *sizes.values()):
        seed = (seed * 1_000_003 + value) % (1 << 62)
    generator = torch.Generator().manual_seed(seed)
    items = job.inputs_at(sizes)
    return {name: _random(item, item.shape_at(sizes), generator) for name, item in items.items()}


def _random(item: InputPart, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    kind = dtype(item.dtype)
    if item.mask is not None:
        return _random_mask(item.mask, shape, generator).to(kind)
    if item.dtype not in FLOATS:
        low, high = item.ends
        if item.distinct:
            order = torch.randperm(int(high) - int(low), generator=generator)[: math.prod(shape)]
            return (order + int(low)).view(shape).to(kind)
        if item.dtype == "bool":
            return torch.randint(int(low), int(high), shape, generator=generator).to(kind)
        # torch takes no end beyond int64, so that its largest number is never drawn.
        end = min(int(high), torch.iinfo(torch.int64).max)
        return torch.randint(int(low), end, shape, dtype=kind, generator=generator)
    if item.range is None:
        return torch.randn(shape, generator=generator).to(kind)
    low, high = item.ends
    return (torch.rand(shape, generator=generator) * (high - low) + low).to(kind)


def _random_mask(side: str, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Rows of ones with zeros on one side, or anywhere; a one in each row."""
    places, rows = torch.arange(shape[-1]), (*shape[:-1], 1)
    first = torch.randint(0, shape[-1], rows, generator=generator)
    if side == "any":
        return (places == first) | (torch.randint(0, 2, shape, generator=generator) == 1)
    return places >= first if side == "left" else places <= first


def poisons(item: InputPart) -> tuple[Poison, ...]:
    """What is put into the pad region of an input with `pad: any` (of `Recipe.inputs_at`) to prove it does no harm.

    Each is a value to fill with, or "random" for random legal values.
    """
    if item.dtype == "bool" or item.mask is not None:
        low, high = item.ends
        legal = [value for value in (1, 0) if low <= value < high]
        return (*(bool(value) if item.dtype == "bool" else value for value in legal), "random")
    if item.dtype in FLOATS:
        return (float("nan"), float("inf"), -float("inf"), _LARGE[item.dtype])
    low, high = item.ends
    return () if item.distinct else ("random", int(high) - 1, int(low))


def poisoned(item: InputPart, real: torch.Tensor, shape: Sequence[int], poison: Poison, stream: int) -> torch.Tensor:
    """A tensor of `shape` with `real` in its leading part and `poison` in the rest."""
    if isinstance(poison, str):
        whole = _random(item, shape, torch.Generator().manual_seed(stream))
    else:
        whole = torch.full(shape, poison, dtype=real.dtype)
    whole[tuple(slice(0, size) for size in real.shape)] = real
    return whole


def real_inputs(job: EntryJob) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """What the recipe has of real inputs: its file of samples, and its prompts; where each is from, and its inputs."""
    for number, inputs in enumerate(read_samples(job)):
        yield f"verify.samples, {number}", inputs
    for number, inputs in enumerate(job.prompts(job) if job.prompts else ()):
        yield f"verify.prompts, {number}", inputs


def read_samples(job: EntryJob, field: str = "verify.samples") -> Iterator[dict[str, torch.Tensor]]:
    """The inputs in its file of samples, one call after the other; raises RecipeError, about that `field`."""
    if job.samples is None:
        return
    file = job.folder / job.samples
    try:
        tensors = safetensors.torch.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise RecipeError(f"{field}: not readable: {error}", where=job.where, got=str(file)) from error
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for key in sorted(tensors):
        # Names of inputs may have dots themselves.
        ends = [name for name in job.inputs if key == name or key.endswith(f".{name}")]
        name = max(ends, key=len, default=key)
        sample = key.removesuffix(name).removesuffix(".")
        groups.setdefault(sample, {})[name] = tensors[key]
    for sample, inputs in groups.items():
        if set(inputs) != set(job.inputs):
            raise RecipeError(
                f"{field}: the sample {sample!r} does not hold the recipe's inputs",
                where=str(file),
                expected=", ".join(job.inputs),
                got=", ".join(sorted(inputs)),
            )
        yield inputs
