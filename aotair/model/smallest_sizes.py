"""The smallest sizes that the model takes along dimensions that may be padded: tried, where the recipe is silent."""

import logging
from collections.abc import Mapping

import torch

from ..errors import user_frame
from ..recipe.entry import EntryJob
from .reference import Original
from .samples import random_inputs

log = logging.getLogger("aotair")


def with_least_sizes(model: torch.nn.Module, job: EntryJob) -> EntryJob:
    """The entry point with a `min` for each dimension along which calls may be smaller than the smallest bucket, and
    the model fails at smaller ones. A loaded model refuses calls below it: nothing was proved of them."""
    found = {dim: _least(model, job, dim) for dim in job.dims() if _may_be_smaller(job, dim)}
    return job.with_least({dim: size for dim, size in found.items() if size > job.least(dim)})


def _may_be_smaller(job: EntryJob, dim: str) -> bool:
    said = dim in job.dimensions and job.dimensions[dim].min is not None
    return not said and job.paddable(dim) and job.least(dim) < _smallest(job)[dim]


def _smallest(job: EntryJob) -> dict[str, int]:
    buckets = job.bucket_sizes()
    return {dim: min(bucket[axis] for bucket in buckets) for axis, dim in enumerate(job.dims())}


def _least(model: torch.nn.Module, job: EntryJob, dim: str) -> int:
    """The smallest size along `dim` at which the model does not fail, with the others as in the smallest bucket."""
    original, sizes = Original(model, job), dict(zip(job.dims(), job.bucket_sizes()[0]))
    low, high = job.least(dim), _smallest(job)[dim]
    if _takes(original, job, sizes | {dim: low}) or not _takes(original, job, sizes | {dim: high}):
        return low  # where it fails anyhow, that is for others to say
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _takes(original, job, sizes | {dim: middle}) else (middle, high)
    log.info("%s: the model takes no %s below %d: a call that is smaller will be refused", job.where, dim, high)
    return high


def _takes(original: Original, job: EntryJob, sizes: Mapping[str, int]) -> bool:
    try:
        original(random_inputs(job, sizes, 0))
    except Exception as error:  # whatever a model raises
        log.debug("%s: at %s%s: %s", job.where, dict(sizes), user_frame(error), error)
        return False
    finally:
        original.reset()
    return True
