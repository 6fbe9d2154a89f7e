"""Which layers does the recipe's `quantize` name, and has its target a kernel for each of them?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import nn

from aotair_runtime.artifact.checkpoint import some

from ..errors import ModelError
from ..recipe.job import Job
from ..recipe.quantize_part import QuantizePart, Scheme, bits, is_weight_only
from .quantized_experts import unfit_experts, weights_of
from .quantized_linear import MOST_INPUTS, unfit_for_cpu, unfit_for_npu
from .replaceable import refuse_altered

Named = dict[str, list[str]]  # by the first name of a module, all that the model has for it
_HALVES = (torch.float16, torch.bfloat16)
_SKIP = "name them in quantize.skip, or "


@dataclass(frozen=True)
class Asked:
    """A linear layer, and what the recipe asks of it."""

    linear: nn.Linear
    scheme: Scheme
    group: int | None


def linears_to_quantize(model: nn.Module, job: Job) -> tuple[Named, Mapping[str, Asked]]:
    """The linear layers to replace. Raises ModelError where none fits, or one has no kernel."""
    part = _part(job)
    if not part.linear:
        return {}, {}
    kinds = _dtypes(job)
    named = _named(model, lambda module: type(module) is nn.Linear and module.weight.dtype in kinds, part)
    schemes = {first: scheme for first, every in named.items() if (scheme := part.scheme_of(every)) is not None}
    if not schemes:
        raise ModelError(
            "quantize: no linear layer fits",
            where=job.where,
            expected=f"an nn.Linear of {_shown(kinds)} that quantize.linear means, and no pattern of quantize.skip",
            got="the model itself is the layer" if type(model) is nn.Linear else _patterns(part),
            fix=f"set model.dtype to {_shown(kinds)}, or remove quantize.linear; a layer is replaced in the module "
            "that holds it",
        )
    asked = {
        name: Asked(cast(nn.Linear, model.get_submodule(name)), scheme, part.group(scheme))
        for name, scheme in schemes.items()
    }
    _refuse_idle(model, part, [*named.values()], job)
    refuse_altered({name: one.linear for name, one in asked.items()}, "quantize", job.where, _SKIP)
    for scheme in part.linear_schemes:
        own = {name: one for name, one in asked.items() if one.scheme == scheme}
        _refuse(_unfit(own, job), scheme, job, "choose another quantize.group_size")
    return {name: named[name] for name in asked}, asked


def _refuse_idle(model: nn.Module, part: QuantizePart, layers: Sequence[Sequence[str]], job: Job) -> None:
    """Raises ModelError for patterns that mean nothing: of `linear` those by which no layer is quantised, of `skip`
    those that fit no module."""
    modules = [name for name, _ in model.named_modules(remove_duplicate=False)]
    used = {part.pattern_of(every) for every in layers}
    idle = [f"linear: {one}" for one in (part.linear if isinstance(part.linear, dict) else ()) if one not in used]
    idle += [f"skip: {one}" for one in part.skip or () if not any(fnmatchcase(name, one) for name in modules)]
    if idle:
        raise ModelError(
            "quantize: patterns that mean no layer",
            where=job.where,
            expected="names of the model's linear layers, of which quantize.skip and the patterns before leave some",
            got=some(idle),
            fix=f"correct or remove them; the model has {some([every[0] for every in layers])}",
        )


def _patterns(part: QuantizePart) -> str:
    by_layer = f"linear: {[*part.linear]}, " if isinstance(part.linear, dict) else ""
    return f"{by_layer}skip: {part.skipped}"


def experts_to_quantize(model: nn.Module, job: Job) -> tuple[Named, Mapping[str, nn.Module]]:
    """The modules of experts to replace. Raises ModelError where none fits, or one has no kernel."""
    part = _part(job)
    if part.experts is None:
        return {}, {}
    kinds = _dtypes(job)
    names = _named(model, lambda module: {one.dtype for one in weights_of(module)} in [{kind} for kind in kinds], part)
    if not names:
        raise ModelError(
            "quantize: no experts fit",
            where=job.where,
            expected=f"experts of {_shown(kinds)} in tensors of three dimensions, of a class that transformers lets be "
            "computed in several forms, that no pattern of quantize.skip names",
            got=_instead(model, part),
            fix=f"set model.dtype to {_shown(kinds)}, or remove quantize.experts; experts that are nn.Linear are "
            "quantised by quantize.linear",
        )
    experts = {name: model.get_submodule(name) for name in names}
    refuse_altered(experts, "quantize", job.where, _SKIP, "experts", "modules of experts")
    wrong = (f"{name} ({why})" for name, one in experts.items() if (why := unfit_experts(one, job.target)))
    _refuse(wrong, part.experts, job, "remove quantize.experts")
    return names, experts


def _part(job: Job) -> QuantizePart:
    assert job.quantize is not None
    return job.quantize


def _named(model: nn.Module, fits: Callable[[Any], bool], part: QuantizePart) -> Named:
    """The modules that fit, each by all names that the model has for it, unless a pattern names one of these."""
    found: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if name and fits(module):
            found.setdefault(id(module), []).append(name)
    return {names[0]: names for names in found.values() if not part.skips(names)}


def _dtypes(job: Job) -> tuple[torch.dtype, ...]:
    return _HALVES if job.target.kind == "npu" else (*_HALVES, torch.float32)


def _shown(kinds: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(kind).removeprefix("torch.") for kind in kinds)


def _instead(model: nn.Module, part: QuantizePart) -> str:
    """What the model has in place of experts that fit."""
    theirs = [f"{name} ({one[0].dtype})" for name, module in model.named_modules() if (one := weights_of(module))]
    if theirs:
        return f"{some(theirs)}, with skip: {part.skipped}"
    own = [f"{name} ({type(module).__name__})" for name, module in model.named_modules() if _has_matrices(module)]
    return f"experts in a form of their own: {some(own)}" if own else "a model without such experts"


def _has_matrices(module: nn.Module) -> bool:
    return any(
        weight.dim() == 3 and name.startswith("down_proj") for name, weight in module.named_parameters("", False)
    )


def _refuse(wrong: Iterator[str], scheme: str, job: Job, fix: str) -> None:
    if found := list(wrong):
        raise ModelError(
            f"quantize: layers that {scheme} has no kernel for", where=job.where, got=some(found), fix=_SKIP + fix
        )


def _unfit(asked: Mapping[str, Asked], job: Job) -> Iterator[str]:
    for name, one in asked.items():
        out, width = one.linear.weight.shape
        group = one.group or width
        if not out or not width:
            yield f"{name} (a weight without elements)"
        elif width % group:
            yield f"{name} ({width} inputs, no multiple of group_size {group})"
        elif not is_weight_only(one.scheme):
            if width > MOST_INPUTS:
                yield f"{name} ({width} inputs: sums of more than {MOST_INPUTS} products of int8 may not fit int32)"
        elif why := _why_unfit(one, group, job):
            yield f"{name} ({why})"


def _why_unfit(one: Asked, group: int, job: Job) -> str:
    out, width = one.linear.weight.shape
    if job.target.kind == "npu":
        return unfit_for_npu(out, width, bits(one.scheme), group, one.linear.weight.dtype)
    return unfit_for_cpu(out, width, bits(one.scheme), group, torch.bfloat16, zeros=False)
