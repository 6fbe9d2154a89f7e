"""Layers over whole numbers and caches of such, as the recipe's `quantize` asks: they are replaced, and how far that
moves what the model answers is measured."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from aotair_runtime.artifact.checkpoint import some

from ..errors import ModelError
from ..log import logger
from ..recipe.job import Job
from ..summary import Quantised
from .calibration import Calibration, Errors, Largest, calibration_of, watched, worst_first
from .quantizable import Asked, experts_to_quantize, linears_to_quantize
from .quantized_cache import KeepsCache, cache_to_quantize, texts_of
from .quantized_experts import quantized_experts
from .quantized_layers import quantized

_LIKE = 0.9  # the cosine from which on a model answers as that of floats does


def quantize(model: nn.Module, job: Job) -> Quantised | None:
    """Replace the linear layers, experts and caches of `model` that the recipe names, in place; nothing where it names
    none.

    Raises ModelError where none fits, where one has no kernel, or where a static scale is asked for a layer that no
    call reaches.
    """
    if (part := job.quantize) is None:
        return None
    (linear_names, asked), (expert_names, experts) = linears_to_quantize(model, job), experts_to_quantize(model, job)
    linears = {name: one.linear for name, one in asked.items()}
    cache = cache_to_quantize(model, job)
    calibration = calibration_of(job)
    texts = texts_of(calibration)
    largest = _largest(model, asked, calibration, job)
    forms = {
        name: quantized(one.linear, one.scheme, one.group, job.target, largest.get(name)) for name, one in asked.items()
    }
    if part.experts is not None:
        forms |= {name: quantized_experts(one, part.experts, job.target) for name, one in experts.items()}
    errors = Errors(forms)
    with torch.no_grad(), watched({**linears, **experts}, errors):
        before, rows = _answers(model, calibration, cache, texts)
    for first, names in (linear_names | expert_names).items():
        for name in names:
            model.set_submodule(name, forms[first])
    model.eval().requires_grad_(False)
    caches = 0 if cache is None else cache.quantize_cache()
    moved = _distance(before, _answers(model, calibration, cache, texts)[0])
    counts = " and ".join(part.linear_schemes) or None, len(linears), part.experts, len(experts), part.kv_cache, caches
    source = f"{calibration.source} (of the cache: random tokens)" if cache and not texts else calibration.source
    found = Quantised(*counts, source, worst_first({**errors.relative(), **rows}), *moved)
    if found.cosine < _LIKE:
        logger.warning(
            "quantize: the answers are other ones than those of floats: their cosine over %s is %.2f; what moves most "
            "is %s: name it in quantize.skip, or quantise otherwise",
            found.source,
            found.cosine,
            some(list(found.layers)),
        )
    return found


def _answers(
    model: nn.Module, calibration: Calibration, cache: KeepsCache | None, texts: Sequence[Tensor]
) -> tuple[list[Tensor], Mapping[str, float]]:
    """What the model answers to a calibration, and to its texts through the cache where that is quantised; and how far
    each buffer of this would move."""
    answers = calibration.answers(model)
    if cache is None:
        return answers, {}
    with torch.no_grad():
        logits, rows = cache.tried(texts)
    return answers + [one.double() for one in logits], rows


def _largest(model: nn.Module, asked: Mapping[str, Asked], calibration: Calibration, job: Job) -> Mapping[str, float]:
    """Of each layer with a static scale, the largest absolute value of its inputs."""
    linears = {name: one.linear for name, one in asked.items() if one.scheme == "int8_static"}
    if not linears:
        return {}
    largest = Largest()
    with watched(linears, largest):
        calibration.answers(model)
    if missing := [name for name in linears if name not in largest.found]:
        raise ModelError(
            "quantize: int8_static needs calls of every layer, and the calibration makes none of some",
            where=job.where,
            expected=f"inputs that reach them; these were {calibration.source}",
            got=some(missing),
            fix="name them in quantize.skip, or inputs that reach them in quantize.calibration",
        )
    return largest.found


def _distance(before: Sequence[Tensor], after: Sequence[Tensor]) -> tuple[float, float, float]:
    """The largest difference, the largest relative one, and the smallest cosine."""
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if a.numel()]
    largest = max(((b - a).abs().max().item() for a, b in pairs), default=0.0)
    relative = max(((b - a).norm().item() / max(a.norm().item(), 1e-30) for a, b in pairs), default=0.0)
    cosine = min((_cosine(a, b) for a, b in pairs), default=1.0)
    return largest, relative, cosine


def _cosine(a: Tensor, b: Tensor) -> float:
    norms = a.norm().item() * b.norm().item()
    return (a * b).sum().item() / norms if norms else float(torch.equal(a, b))
