"""Layers in stages: each rank has an equal run of a model's layers, and all ranks run one program over them.

The program is that of the first stage. What its layer `i` has stands for what the layers `i`, `i + n`, `i + 2n` … of
the whole model have, one behind the other, of which each rank takes its own, so that a checkpoint of the whole model
holds it in pieces. Before a stage a rank hears what the one before it made, and after it what the last one made.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aotair_runtime.artifact.checkpoint import same_bytes

from ..errors import ModelError
from .styles import Place, Shared, put_in_front

STAGES = "stages"  # the style
_LISTS = (nn.ModuleList, nn.Sequential)
_OF_ANY_MODULE = frozenset(vars(nn.Module()))  # parameters and hooks among them


@dataclass(frozen=True)
class Staged:
    """`names`: what the model had in all stages, by the name of what is left, which stands for all. `stages`: the
    layers of each, by their places in the list; `kept`: those that stay whole on every rank, and why. `gone`: what the
    names began with of tensors that are no more."""

    names: Mapping[str, tuple[str, ...]]
    stages: tuple[range, ...]
    kept: Mapping[str, str]
    gone: tuple[str, ...]


def layers_of(model: nn.Module) -> str | None:
    """The name of the list of modules that has most of the model's weights, where there is one."""
    sizes: dict[str, int] = {}
    for name, module in model.named_modules():
        if isinstance(module, _LISTS) and len(module) > 1 and not any(name.startswith(f"{one}.") for one in sizes):
            sizes[name] = sum(parameter.numel() for parameter in module.parameters())
    return max(sizes, key=lambda name: sizes[name], default=None)


def keep_first_stage(model: nn.Module, whole: nn.Module, name: str, place: Place, where: str) -> Staged:
    """Leave of a list of layers those of the first stage, each of which meets the other ranks where it has to, and what
    is no layer of a stage. `whole`: the model with nothing cut. Raises ModelError where there are no equal stages."""
    layers: Any = model.get_submodule(name)
    if not isinstance(layers, _LISTS):
        raise _refusal(name, where, f"a {type(layers).__name__}", "a ModuleList or Sequential, whose layers are alike")
    keys, before = list(layers._modules), f"{name}." if name else ""
    _refuse_tied(whole, [before + key for key in keys], name, where)
    stages = _stages([*whole.get_submodule(name).children()], place.size, name, where)
    left: dict[int, nn.Module] = dict(enumerate(layers))
    labels = dict(enumerate(keys))
    names: dict[str, tuple[str, ...]] = {}
    for own in zip(*stages, strict=True):
        labels[own[0]] = "+".join(keys[n] for n in own)
        members = [left[own[0]], *(left.pop(n) for n in own[1:])]
        _refuse_styles_apart(members, own, name, where)
        for inner, values in _together(members):
            if all(value.dim() for value in values):
                theirs = tuple(f"{before}{keys[n]}.{inner}" for n in own)
                names[f"{before}{labels[own[0]]}.{inner}"] = theirs
            elif not same_bytes(values) or values[0].is_floating_point():
                raise _refusal(name, where, f"{inner}, a single number", "tensors of one dimension or more")
    layers._modules = {labels[n]: layer for n, layer in left.items()}
    put_in_front(layers, _ByPlace, place)
    put_in_front(left[stages[0][0]], _First, place)
    put_in_front(left[stages[0][-1]], _Last, place)
    staged = {n for stage in stages for n in stage}
    kept = {before + keys[n]: f"no part of {place.size} equal stages" for n in left if n not in staged}
    return Staged(names, stages, kept, tuple(f"{before}{keys[n]}." for n in sorted(staged)))


def _stages(layers: Sequence[nn.Module], count: int, name: str, where: str) -> tuple[range, ...]:
    """The longest run of layers that is `count` equal stages, of several the last. Raises ModelError where that is less
    than half of the layers."""
    kinds, why = _kinds(layers)
    for each in range(len(layers) // count, 0, -1):
        for start in range(len(layers) - each * count, -1, -1):
            stages = tuple(range(begin, begin + each) for begin in range(start, start + each * count, each))
            if len({tuple(kinds[n] for n in stage) for stage in stages}) == 1 and 2 * each * count >= len(layers):
                return stages
    got = why or f"{len(layers)} layers"
    raise _refusal(name, where, got, f"{count} runs of layers, each like the others but for its weights")


def _kinds(layers: Sequence[nn.Module]) -> tuple[list[int], str | None]:
    """For each layer the number of the first that is like it; and how one differs from the first of all."""
    kinds: list[int] = []
    first: str | None = None
    for number, layer in enumerate(layers):
        for other in dict.fromkeys(kinds):
            why = _unlike((layers[other], layer), (other, number))
            if why is None:
                kinds.append(other)
                break
            first = first or why
        else:
            kinds.append(number)
    return kinds, first


def _refusal(name: str, where: str, got: str, expected: str) -> ModelError:
    return ModelError(
        f"mesh: {name or 'the model'} cannot be cut into stages",
        where=where,
        expected=expected,
        got=got,
        fix="choose another number of stages, name other layers (parallel: {PATTERN: stages}), or cut widths (tp)",
    )


def _refuse_tied(model: nn.Module, layers: Sequence[str], name: str, where: str) -> None:
    """Raises ModelError where a layer has a tensor that something else has too."""
    owner: dict[int, str] = {}
    for path, tensor in named_tensors(model):
        layer = next((one for one in layers if path.startswith(f"{one}.")), "")
        if owner.setdefault(id(tensor), layer) != layer:
            raise _refusal(name, where, f"{path}, which is tied to another tensor", "layers with weights of their own")


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _together(members: Sequence[nn.Module]) -> Iterator[tuple[str, list[Tensor]]]:
    """What layers that are alike have under each name."""
    every = [dict(named_tensors(member)) for member in members]
    for name in every[0]:
        yield name, [one[name].detach() for one in every]


def _refuse_styles_apart(layers: Sequence[nn.Module], numbers: Sequence[int], name: str, where: str) -> None:
    """Raises ModelError where a layer is shared out itself, or one of several is otherwise than the others."""
    for number, layer in zip(numbers, layers):
        if isinstance(layer, Shared):
            got = f"the layer {number}, which has a style of its own"
            raise _refusal(name, where, got, "styles for the modules within a layer, which is a stage's as a whole")
        if _names_of(layer) != _names_of(layers[0]):
            pair = f"the layers {numbers[0]} and {number}, of which one alone has some style within"
            raise _refusal(name, where, pair, "one style for the layers at the same place of each stage")


def _names_of(module: nn.Module) -> set[str]:
    return {name for name, _ in named_tensors(module)}


def _unlike(layers: tuple[nn.Module, nn.Module], numbers: tuple[int, int]) -> str | None:
    """How the second of two layers, which have these numbers, differs from the first but for its weights; None where it
    does not."""
    pair = f"the layers {numbers[0]} and {numbers[1]}"
    first, other = (dict(layer.named_modules()) for layer in layers)
    if {path: type(one) for path, one in first.items()} != {path: type(one) for path, one in other.items()}:
        return f"{pair} are made of other modules"
    mine, theirs = ({name: (t.shape, t.dtype) for name, t in named_tensors(layer)} for layer in layers)
    if mine != theirs:
        different = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        return f"{pair} differ in the shape of {different[0]}"
    for path, module in first.items():
        if (key := _other_setting(module, other[path], numbers)) is not None:
            return f"{pair} differ in {f'{path}.' if path else ''}{key}"
    return None


def _other_setting(one: nn.Module, other: nn.Module, numbers: tuple[int, int]) -> str | None:
    """The name of an attribute that two modules have with other values; their layers' numbers may differ."""
    mine, theirs = ({k: v for k, v in vars(m).items() if k not in _OF_ANY_MODULE} for m in (one, other))
    for key in sorted(mine.keys() | theirs.keys()):
        pair: Any = mine.get(key), theirs.get(key)
        if isinstance(pair[0], Tensor) and isinstance(pair[1], Tensor):
            same = pair[0].shape == pair[1].shape and same_bytes(pair)
        elif isinstance(pair[0], (bool, int, float, str, tuple, list, type(None))):
            same = pair[0] == pair[1] or (type(pair[0]) is int and pair == numbers)
        else:
            same = type(pair[0]) is type(pair[1])
        if not same:
            return key
    return None


# ---- where ranks meet ------------------------------------------------------------------------------------------------


class _ByPlace:
    """A list of layers that finds them by their places, whatever they are called."""

    _modules: dict[str, nn.Module]

    def __getitem__(self, number: Any) -> Any:
        found = list(self._modules.values())[number]
        return nn.ModuleList(found) if isinstance(number, slice) else found


class _First(Shared):
    """The first layer of a stage: its first argument is what the stage before made."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        behind: Any = super().forward  # type: ignore[misc]  # of the class behind
        if args:
            return behind(self._heard(args[0]), *args[1:], **kwargs)
        name = next(name for name in inspect.signature(behind).parameters if name in kwargs)
        return behind(**kwargs | {name: self._heard(kwargs[name])})

    def _heard(self, x: Tensor) -> Tensor:
        made: Tensor = torch.ops.air.stage_input(x, self.place.size, self.place.name)
        return made


class _Last(Shared):
    """The last layer of a stage: its first result is what the last stage makes."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        made = super().forward(*args, **kwargs)  # type: ignore[misc]  # of the class behind
        x, *more = made if isinstance(made, tuple) else (made,)
        heard = torch.ops.air.stage_output(x, self.place.size, self.place.name)
        return (heard, *more) if isinstance(made, tuple) else heard
