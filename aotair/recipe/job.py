"""What a build is about to do: the one value that stages see, made once of a recipe, all that it names imported."""

import copy
import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from aotair_runtime.errors import AotairError
from aotair_runtime.format.mesh import ranks_of
from aotair_runtime.format.schema import Axis, Tolerance

from .. import fusion
from ..errors import ModelError
from ..ops.naming import host_as_npu
from ..target.target import Target
from .config import CUSTOM_PASSES, CompilerConfig
from .entry import EntryJob, entry_jobs, golden_tolerance
from .imports import import_callable
from .quantize_part import QuantizePart
from .recipe import ModelPart, Recipe
from .target_part import TargetPart


@dataclass(frozen=True)
class Job:
    """`where` is what errors call it, `folder` what its relative paths are relative to. `target` is the device that the
    program is for, `needs` what a node must have. `factory` makes the model, or `given` is one that is there
    already. `config` has the passes that it names imported; `rules` are those that the recipe brings. `seed` is the
    proof's, `tolerance` that of the golden tensors; `sampled`: fewer runs prove it. `written` is the recipe as
    plain data, for the fingerprint. `meshes`: for which ranks there is to be a program; the target's is that of the
    first, until `for_each_mesh` says another, and modules are shared out among its ranks as `parallel` says. `files`
    travel with the artifact, and `companions` writes what else does into a directory."""

    name: str
    where: str
    folder: Path
    model: ModelPart
    factory: Callable[..., object] | None
    given: torch.nn.Module | None
    target: Target
    needs: TargetPart
    config: CompilerConfig
    rules: tuple[fusion.Rule, ...]
    quantize: QuantizePart | None
    seed: int
    tolerance: Tolerance
    sampled: bool
    entries: tuple[EntryJob, ...]
    written: Mapping[str, object]
    meshes: tuple[tuple[Axis, ...], ...] = ((),)
    parallel: str | Mapping[str, str] = "auto"
    files: tuple[Path, ...] = ()
    companions: Callable[[Path], object] | None = None

    @property
    def mesh(self) -> tuple[Axis, ...]:
        """The ranks that run the program together."""
        return self.target.mesh

    def with_entry(self, entry: EntryJob) -> "Job":
        """The same job, with another entry point in the place of that of its name."""
        return replace(self, entries=tuple(entry if one.entry == entry.entry else one for one in self.entries))

    def for_each_mesh(self) -> "list[Job]":
        """The same job for the ranks of each of its meshes."""
        return [replace(self, target=replace(self.target, mesh=mesh)) for mesh in self.meshes]


def job_of(recipe: Recipe, *, given: torch.nn.Module | None = None, config: CompilerConfig | None = None) -> Job:
    """The job of a recipe; `given` is a model that is there already, `config` is taken instead of the recipe's. Imports
    the passes and rules that the recipe names. Raises ModelError where one cannot be imported."""
    if config is not None:
        recipe = recipe.model_copy(update={"config": config})
    meshes = tuple(map(_mesh, recipe.meshes))
    entries = tuple(replace(one, prompts=_prompts(recipe)) for one in entry_jobs(recipe))
    asked, own = recipe.target, recipe.config.experimental_config
    reads_nz = asked.device == "npu" and asked.pack_weights and own.weight_nz
    target = Target(asked.device, asked.pack_weights, reads_nz, asked.allowed, meshes[0], asked.soc or "")
    if target.takes_host_arguments or any(item.host for one in entries for item in one.inputs.values()):
        importlib.import_module("aotair.ops.npu")  # the model, passes and rules may call them
    # First: passes and rules may name ops that the model's module defines.
    factory = _factory(recipe, target) if given is None else None
    return Job(
        name=recipe.name,
        where=recipe.where,
        folder=recipe.folder,
        model=recipe.model,
        factory=factory,
        given=given,
        target=target,
        needs=recipe.target,
        config=_with_functions(copy.deepcopy(recipe.config) if config is None else config, recipe),
        rules=_rules(recipe),
        quantize=recipe.quantize,
        meshes=meshes,
        parallel=recipe.parallel,
        seed=recipe.verify.seed,
        tolerance=golden_tolerance(recipe),
        sampled=recipe.verify.level == "sampled",
        entries=entries,
        written=recipe.model_dump(mode="json", exclude=_NO_DATA),
        files=tuple(recipe.folder / file for file in recipe.files),
        companions=_companions(recipe),
    )


def _factory(recipe: Recipe, target: Target) -> Callable[..., object]:
    """What makes the recipe's model, called with `model.kwargs`."""
    part = recipe.model
    if part.pretrained is None:
        assert part.factory is not None, "refused by check_recipe"
        return import_callable(part.factory, recipe.folder, recipe.where, "model.factory")
    make = import_callable("aotair.hf.tasks:make", recipe.folder, recipe.where, "model.pretrained")
    return functools.partial(make, part.pretrained, part.task, part.dtype, target, recipe.folder, recipe.where)


def _prompts(recipe: Recipe) -> Callable[[EntryJob], list[dict[str, torch.Tensor]]] | None:
    """What gives an entry point's calls with the tokens of texts."""
    part, texts = recipe.model, recipe.verify.prompts
    if part.pretrained is None:
        return None
    prompts: Any = import_callable("aotair.hf.tasks:prompts", recipe.folder, recipe.where, "model.pretrained")
    return functools.partial(prompts, part.pretrained, part.task, texts, recipe.folder, recipe.where)


def _mesh(sizes: Mapping[str, int]) -> tuple[Axis, ...]:
    """The axes; none where one rank is all there is, which needs nobody to start it."""
    axes = tuple(Axis(name, size) for name, size in sizes.items())
    return axes if ranks_of(axes) > 1 else ()


def _companions(recipe: Recipe) -> Callable[[Path], object] | None:
    if recipe.model.pretrained is None:
        return None
    bring = import_callable("aotair.hf.tasks:bring", recipe.folder, recipe.where, "model.pretrained")
    return functools.partial(bring, recipe.model.pretrained, recipe.folder)


_NO_DATA = {"config": dict.fromkeys(CUSTOM_PASSES, True)}  # passes may be functions


def _with_functions(config: CompilerConfig, recipe: Recipe) -> CompilerConfig:
    found = {}
    for option in CUSTOM_PASSES:
        value = getattr(config, option)
        if isinstance(value, str):
            found[option] = import_callable(value, recipe.folder, recipe.where, f"config.{option}")
    return config.model_copy(update=found)


def _rules(recipe: Recipe) -> tuple[fusion.Rule, ...]:
    """The rules that the functions under `fusion` register."""
    rules: list[fusion.Rule] = []
    for number, name in enumerate(recipe.fusion):
        field = f"fusion[{number}]"
        with host_as_npu():
            function = import_callable(name, recipe.folder, recipe.where, field)
        try:
            with host_as_npu():
                found = fusion.rules_of(function)
        except AotairError:
            raise
        except Exception as error:
            raise ModelError(
                f"{field}: {name} failed: {type(error).__name__}: {error}",
                where=recipe.where,
                expected="a function that calls aotair.register_replacement",
                fix="call it yourself to see where",
            ) from error
        if not found:
            raise ModelError(
                f"{field}: {name} registered no rule",
                where=recipe.where,
                expected="a function that calls aotair.register_replacement",
                fix="register inside the function",
            )
        rules += found
    return tuple(rules)
