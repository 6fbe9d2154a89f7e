"""Steps of `aotair-kernels` made alone: numbers to call them with, and what came beside what torch gives."""

import itertools
import math
from collections.abc import Sequence
from importlib.util import find_spec

import pytest
import torch

from aotair_runtime.steps import attention, library, table
from aotair_runtime.steps.join import Joined, Named
from aotair_runtime.steps.written import Steps

needs_kernels = pytest.mark.skipif(find_spec("aotair_kernels") is None, reason="aotair-kernels is not installed")

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SPECIAL = (0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3e38, 88.7, -103.0, 0.49, -0.51, 1e4)


pays = attention._pays


def run(
    op: torch._ops.OpOverload, *args: object, targets: Sequence[torch.Tensor | None] | None = None, **kwargs: object
):
    """Make the call as steps, and nothing else."""
    make(table.steps(op, args, kwargs, targets))


def make(steps: Steps | None) -> None:
    """Make these steps, and nothing else."""
    assert steps is not None, "no small op"
    Joined([(Named(_refused, "here"), steps)], library.run())()


def _refused() -> None:
    raise LookupError("the step was not made")


def numbers(shape: Sequence[int], kind: torch.dtype, seed: int, *, special: bool = True) -> torch.Tensor:
    made = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed)) * 2
    flat = made.view(-1)
    if special:
        for place, value in zip(range(seed % 3, len(flat), 7), itertools.cycle(SPECIAL)):
            flat[place] = value
    return made.to(kind)


def same(got: torch.Tensor, want: torch.Tensor, away: float = 0.0) -> None:
    """Equal where `away` is 0, else near; in halves at most a rounding more."""
    if away == 0.0:
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    else:
        step = torch.finfo(got.dtype).eps if got.dtype != F32 else 0.0
        torch.testing.assert_close(got, want, rtol=away + step, atol=away, equal_nan=True)
