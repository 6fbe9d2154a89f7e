"""The smallest sizes that the model takes along dimensions that may be padded: tried, where the recipe is silent."""

import logging
from collections.abc import Mapping

import torch

from ..errors import user_frame
from ..recipe.recipe import DimensionPart, Recipe
from .reference import Original
from .samples import random_inputs

log = logging.getLogger("aotair")


def with_least_sizes(model: torch.nn.Module, recipe: Recipe) -> Recipe:
    """The recipe with a `min` for each dimension along which calls may be smaller than the smallest bucket, and the
    model fails at smaller ones. A loaded model refuses calls below it: nothing was proved of them."""
    for one in recipe.entries():
        found = {dim: _least(model, one, dim) for dim in one.dims() if _may_be_smaller(one, dim)}
        found = {dim: size for dim, size in found.items() if size > one.least(dim)}
        recipe = recipe.with_dimensions(one.entry, {dim: DimensionPart(min=size) for dim, size in found.items()})
    return recipe


def _may_be_smaller(recipe: Recipe, dim: str) -> bool:
    said = dim in recipe.dimensions and recipe.dimensions[dim].min is not None
    return not said and recipe.paddable(dim) and recipe.least(dim) < _smallest(recipe)[dim]


def _smallest(recipe: Recipe) -> dict[str, int]:
    buckets = recipe.bucket_sizes()
    return {dim: min(bucket[axis] for bucket in buckets) for axis, dim in enumerate(recipe.dims())}


def _least(model: torch.nn.Module, recipe: Recipe, dim: str) -> int:
    """The smallest size along `dim` at which the model does not fail, with the others as in the smallest bucket."""
    original, sizes = Original(model, recipe), dict(zip(recipe.dims(), recipe.bucket_sizes()[0]))
    low, high = recipe.least(dim), _smallest(recipe)[dim]
    if _takes(original, recipe, sizes | {dim: low}) or not _takes(original, recipe, sizes | {dim: high}):
        return low  # where it fails anyhow, that is for others to say
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _takes(original, recipe, sizes | {dim: middle}) else (middle, high)
    log.info("%s: the model takes no %s below %d: a call that is smaller will be refused", recipe.where, dim, high)
    return high


def _takes(original: Original, recipe: Recipe, sizes: Mapping[str, int]) -> bool:
    try:
        original(random_inputs(recipe, sizes, 0))
    except Exception as error:  # whatever a model raises
        log.debug("%s: at %s%s: %s", recipe.where, dict(sizes), user_frame(error), error)
        return False
    finally:
        original.reset()
    return True
