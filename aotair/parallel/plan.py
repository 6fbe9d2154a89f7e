"""Which modules of a model are shared out, and how: as the recipe says, or as the model's own plan does."""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from aotair_runtime.format.schema import Axis

from ..errors import ModelError
from .stages import STAGES, layers_of
from .styles import DISPATCH, STYLES, Place

# What transformers calls the same in its plans; what is not here stays whole.
_THEIR_NAMES = {
    "colwise": "colwise",
    "rowwise": "rowwise",
    "colwise_gather_output": "gathered",
    "colwise_rep": "gathered",
    "rowwise_split_input": "rowwise_of_all",
    "rowwise_rep": "rowwise_of_all",
    "embedding_rowwise": "vocabulary",
    "moe_tp_experts": "expert_width",
    "ep_dispatch_experts": "expert",
    "sequence_parallel": "sequence",
}
_EXPERTS = ("expert", "expert_width")
_OWN_PLAN = "auto"
_AXES = {DISPATCH: "dp", STAGES: "pp"}
_OUTSIDE = ("vocabulary", "gathered")


@dataclass(frozen=True)
class Planned:
    """One module and its style, along one axis."""

    name: str
    style: str
    place: Place


def places(mesh: Sequence[Axis]) -> dict[str, Place]:
    """The axes by name."""
    return {axis.name: Place(number, axis.name, axis.size) for number, axis in enumerate(mesh)}


def planned(model: nn.Module, patterns: Mapping[str, str], mesh: Sequence[Axis], where: str) -> list[Planned]:
    """The modules that a recipe's patterns name. A later pattern wins; with `auto` the model's own plan says what the
    named modules become. Raises ModelError where one names nothing."""
    axes, found = places(mesh), dict[str, Planned]()
    modules = dict(model.named_modules())
    for pattern, text in patterns.items():
        style, _, axis = text.partition("@")
        if style not in (*STYLES, STAGES, _OWN_PLAN) or (axis and (axis not in axes or style == _OWN_PLAN)):
            raise ModelError(
                f"parallel.{pattern}: no such style or axis",
                where=where,
                expected=f"{', '.join((*STYLES, STAGES))}; with @AXIS, one of {', '.join(axes)}; or {_OWN_PLAN}",
                got=text,
            )
        names = fnmatch.filter(modules, pattern)
        if not names:
            raise ModelError(
                f"parallel.{pattern}: no module of the model has such a name",
                where=where,
                expected="names as model.named_modules() gives them, with * for any text",
                got=", ".join([name for name in modules if name][:8]) + ", …",
            )
        if style == _OWN_PLAN:
            found |= {one.name: one for one in own_plan(model, mesh) if one.name in names}
            continue
        place = axes[axis] if axis else _usual(style, axes, where)
        found |= {name: Planned(name, style, place) for name in names if place is not None}
    return [one for one in found.values() if one.style != "replicate"]


def own_plan(model: nn.Module, mesh: Sequence[Axis]) -> list[Planned]:
    """What transformers' model within says of itself (`tp_plan`), with an axis `ep` their experts apart, and with one
    `pp` its layers in stages."""
    axes, found = places(mesh), dict[str, Planned]()
    kinds = ("_tp_plan", "_ep_plan") if "ep" in axes else ("_tp_plan",)
    plans = ((path, _plan_of(one, kinds)) for path, one in model.named_modules())
    path, plan = next((found for found in plans if found[1]), ("", {}))
    names = dict(model.get_submodule(path).named_modules(prefix=path))
    for pattern, theirs in plan.items():
        style = _THEIR_NAMES.get(theirs)
        if style == "expert_width" and "ep" in axes:
            style = "expert"
        place = None if style is None else _usual(style, axes, "")
        if style is not None and place is not None:
            whole = f"{path}.{pattern}" if path else pattern
            found |= {name: Planned(name, style, place) for name in fnmatch.filter(names, whole)}
    if "pp" in axes and (layers := layers_of(model)) is not None:
        found[layers] = Planned(layers, STAGES, axes["pp"])
    return list(found.values())


def _plan_of(module: nn.Module, kinds: Sequence[str]) -> dict[str, str]:
    """That of a module and all within, of which the outermost knows those of the others; the first kind of plan wins
    where several name a module."""
    plans = [plan for kind in kinds if isinstance(plan := getattr(module, kind, None), dict)]
    return {pattern: style for plan in reversed(plans) for pattern, style in plan.items()}


def _usual(style: str, axes: Mapping[str, Place], where: str) -> Place | None:
    """The axis that a style is for where nothing is said: `ep` for experts, `dp` for those whose tokens travel, `pp`
    for stages, else `tp`; and where there is none, `pp` for what stands before and after all layers."""
    if style in _EXPERTS and "ep" in axes:
        return axes["ep"]
    own = _AXES.get(style, "pp" if style in _OUTSIDE and "tp" not in axes else "tp")
    if own not in axes and where and style != "replicate":
        raise ModelError(
            f"parallel: {style} has no axis",
            where=where,
            expected=f"an axis {own} in the mesh, or STYLE@AXIS",
            got=", ".join(axes),
        )
    return axes.get(own)


def units_of(module: nn.Module, parent: Any, style: str) -> int:
    """How many heads the outputs, or inputs, of a projection of an attention have; 0 for another layer. Heads stay
    whole."""
    width = getattr(parent, "head_dim", None)
    if not isinstance(width, int) or not isinstance(module, nn.Linear):
        return 0
    size = module.in_features if style == "rowwise" else module.out_features
    return 0 if size % width else size // width
