"""Linear layers over whole numbers, as the recipe's `quantize` asks: which are replaced, and how far that moves what
the model answers."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from aotair_runtime.artifact.checkpoint import some

from ..errors import ModelError
from ..recipe.job import Job
from ..summary import Quantised
from .calibration import Calibration, Errors, Largest, calibration_of, watched
from .quantized_layers import quantized
from .quantized_linear import MOST_INPUTS, unfit_for_cpu, unfit_for_npu
from .replaceable import refuse_altered

_HALVES = (torch.float16, torch.bfloat16)


def quantize(model: nn.Module, job: Job) -> Quantised | None:
    """Replace the linear layers of `model` that the recipe names, in place; nothing where it names none.

    Raises ModelError where none fits, where one has no kernel, or where a static scale is asked for a layer that no
    call reaches.
    """
    if job.quantize is None:
        return None
    names = _chosen(model, job)
    layers = {group[0]: model.get_submodule(group[0]) for group in names}
    linears = {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear)}
    refuse_altered(linears, "quantize", job.where, "name them in quantize.skip, or ")
    _refuse_unfit(linears, job)
    calibration = calibration_of(job)
    largest = _largest(model, linears, calibration, job)
    forms = {name: quantized(linear, job.quantize, job.target, largest.get(name)) for name, linear in linears.items()}
    errors = Errors(forms)
    with torch.no_grad(), watched(linears, errors):
        before = calibration.answers(model)
    for first, *others in names:
        for name in (first, *others):
            model.set_submodule(name, forms[first])
    model.eval().requires_grad_(False)
    moved = _distance(before, calibration.answers(model))
    return Quantised(job.quantize.linear, len(forms), calibration.source, errors.relative(), *moved)


def _chosen(model: nn.Module, job: Job) -> list[list[str]]:
    """The layers to replace, each by all names that the model has for it."""
    assert job.quantize is not None
    named: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) is nn.Linear and name and module.weight.dtype in _dtypes(job):
            named.setdefault(id(module), []).append(name)
    skip = job.quantize.skip
    found = [
        names for names in named.values() if not any(fnmatchcase(name, pattern) for name in names for pattern in skip)
    ]
    if not found:
        kinds = " or ".join(str(kind).removeprefix("torch.") for kind in _dtypes(job))
        raise ModelError(
            "quantize: no linear layer fits",
            where=job.where,
            expected=f"an nn.Linear of {kinds} that no pattern of quantize.skip names",
            got="the model itself is the layer" if type(model) is nn.Linear else f"skip: {skip}",
            fix=f"set model.dtype to {kinds}, or remove quantize; a layer is replaced in the module that holds it",
        )
    return found


def _dtypes(job: Job) -> tuple[torch.dtype, ...]:
    assert job.quantize is not None
    halves = job.target.kind == "npu" or job.quantize.linear.endswith("weight_only")
    return _HALVES if halves else (*_HALVES, torch.float32)


def _refuse_unfit(linears: Mapping[str, nn.Linear], job: Job) -> None:
    assert job.quantize is not None
    if wrong := list(_unfit(linears, job)):
        raise ModelError(
            f"quantize: layers that {job.quantize.linear} has no kernel for",
            where=job.where,
            got=some(wrong),
            fix="name them in quantize.skip, or choose another quantize.group_size",
        )


def _unfit(linears: Mapping[str, nn.Linear], job: Job) -> Iterator[str]:
    part = job.quantize
    assert part is not None
    for name, linear in linears.items():
        out, width = linear.weight.shape
        group = part.group or width
        if not out or not width:
            yield f"{name} (a weight without elements)"
        elif width % group:
            yield f"{name} ({width} inputs, no multiple of group_size {group})"
        elif not part.linear.endswith("weight_only"):
            if width > MOST_INPUTS:
                yield f"{name} ({width} inputs: sums of more than {MOST_INPUTS} products of int8 may not fit int32)"
        elif why := _why_unfit(linear.weight, part.bits, group, job):
            yield f"{name} ({why})"


def _why_unfit(weight: Tensor, bits: int, group: int, job: Job) -> str:
    out, width = weight.shape
    if job.target.kind == "npu":
        return unfit_for_npu(out, width, bits, group, weight.dtype)
    return unfit_for_cpu(out, bits, group, weight.dtype)


def _largest(
    model: nn.Module, linears: Mapping[str, nn.Linear], calibration: Calibration, job: Job
) -> Mapping[str, float]:
    """With static scales, the largest absolute value of each layer's inputs."""
    assert job.quantize is not None
    if job.quantize.linear != "int8_static":
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
