"""Linear layers in int8, as the recipe's `quantize` asks: per-token dynamic activations, per-channel weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..recipe.entry import EntryJob
from ..recipe.job import Job
from ..recipe.recipe import QuantizePart
from .reference import Original
from .samples import random_inputs

_HALVES = (torch.float16, torch.bfloat16)


class Int8Linear(nn.Module):
    """`x @ weight.T + bias` with int8 weights, and int8 activations that bring a scale for each token.

    weight: (out, in) float16 or bfloat16, bias: (out,) or None, those of the linear layer; the result has the dtype of
    x. A call rounds the weights: whoever builds the graph computes that once, and again for other weights.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        rounded, by_channel = int8_rows(self.weight)
        tokens, scale = torch.ops.npu.npu_dynamic_quant(x)
        result: Tensor = torch.ops.npu.npu_quant_matmul(
            tokens.view(-1, tokens.shape[-1]),
            rounded.t().contiguous(),
            by_channel,
            pertoken_scale=scale.view(-1),
            bias=None if self.bias is None else self.bias.float(),
            output_dtype=x.dtype,
        )
        return result.view(*x.shape[:-1], result.shape[-1])


def int8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a weight (out, in) as int8 of the same shape, and the float32 scale (out,) of each: the largest
    absolute value of the row over 127."""
    wide = weight.float()
    scale = wide.abs().amax(1) / 127
    rows = wide / torch.where(scale == 0, 1.0, scale).unsqueeze(1)
    return rows.round().clamp(-127, 127).to(torch.int8), scale


@dataclass(frozen=True)
class Quantised:
    """How many linear layers became int8, and how far that moved the outputs: the largest difference, and the largest
    norm of a difference over the norm of its output, on random inputs of the smallest bucket."""

    linears: int
    max_abs_error: float
    relative_error: float


def quantize(model: nn.Module, job: Job) -> Quantised | None:
    """Replace the linear layers of `model` that the recipe names, in place; nothing where it names none.

    Raises ModelError where none fits.
    """
    if job.quantize is None:
        return None
    entry = job.entries[-1]  # of a language model, the step that is called most
    inputs = random_inputs(entry, dict(zip(entry.dims(), entry.bucket_sizes()[0])), 0)
    before = _answers(model, entry, inputs)
    found = list(_chosen(model, job.quantize))
    if not found:
        raise ModelError(
            "quantize: no linear layer fits",
            where=job.where,
            expected="an nn.Linear of float16 or bfloat16 that no pattern of quantize.skip names",
            got=f"skip: {job.quantize.skip}",
            fix="set model.dtype to float16 or bfloat16, or remove quantize",
        )
    for name, linear in found:
        model.set_submodule(name, Int8Linear(linear))
    model.eval().requires_grad_(False)
    return Quantised(len(found), *_distance(before, _answers(model, entry, inputs)))


def _chosen(model: nn.Module, part: QuantizePart) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        skipped = any(fnmatchcase(name, pattern) for pattern in part.skip)
        if type(module) is nn.Linear and name and not skipped and module.weight.dtype in _HALVES:
            yield name, module


def _answers(model: nn.Module, job: EntryJob, inputs: dict[str, Tensor]) -> list[Tensor]:
    original = Original(model, job)
    answers = original({name: tensor.clone() for name, tensor in inputs.items()})
    original.reset()
    return [answer.double() for answer in answers if answer.dtype.is_floating_point]


def _distance(before: list[Tensor], after: list[Tensor]) -> tuple[float, float]:
    pairs = [(a, b - a) for a, b in zip(before, after, strict=True) if a.numel()]
    largest = max((away.abs().max().item() for _, away in pairs), default=0.0)
    relative = max((away.norm().item() / max(a.norm().item(), 1e-30) for a, away in pairs), default=0.0)
    return largest, relative
