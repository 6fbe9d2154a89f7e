"""A LoRA adapter in PEFT's layout: what does it add to which weights?

A directory with `adapter_model.safetensors`, which holds `base_model.model.MODULE.lora_A.weight` (rank, in) and
`….lora_B.weight` (out, rank), and `adapter_config.json`. It is untrusted, and checked before any tensor is read. Source
of the formula, W + scale · alpha / rank · B·A (with rslora, alpha / √rank): the documentation of PEFT's LoraConfig.
"""

import itertools
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..artifact.checkpoint import Checkpoint, open_checkpoint, some
from ..artifact.json_file import json_object
from ..artifact.renamed import moved
from ..errors import WeightsError
from ..format.prologue import tensors
from ..format.schema import Constant, Part, Program
from ..format.torch_names import dtype

FILE, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_MOST_CONFIG_BYTES = 1 << 20
_KEY = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<which>[AB])(?:\.[A-Za-z0-9_]+)?\.weight")
# What a configuration may say, with the values that are served (None: any); of all other options only nothing at all.
_EMPTY: tuple[object, ...] = (None, False, [], {})
_SERVED: Mapping[str, tuple[object, ...] | None] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "orthogonal"),  # others change the weights that the adapter is added to
    "use_rslora": (True,),
    "fan_in_fan_out": (True,),
    **dict.fromkeys(("r", "lora_alpha", "alpha_pattern", "rank_pattern", "lora_dropout")),
    **dict.fromkeys(("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "inference_mode")),
    **dict.fromkeys(("task_type", "auto_mapping", "base_model_name_or_path", "revision", "peft_version")),
    # There in each file, and read with options that are not served.
    **dict.fromkeys(("megatron_core", "qalora_group_size")),
}
_MERGE = "merge it into the checkpoint (PEFT's merge_and_unload), and load that with load_weights"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.]+")
_LAYER = re.compile(r".*\.[^.]*\.(\d{1,9})\.")  # the last number in the name of a module, as PEFT looks for a layer's
_ALPHA = 8  # PEFT's own default


@dataclass(frozen=True)
class _Product:
    """The names of both factors in the adapter's file, what their product is multiplied by, and whether it is added
    transposed."""

    a: str
    b: str
    factor: float
    transposed: bool


@dataclass(frozen=True)
class Adapter:
    """What an adapter adds, by the number of the weight among `format.prologue.tensors`."""

    file: Checkpoint
    products: Mapping[int, _Product]

    def parts(self, program: Program) -> list[Part]:
        """The parts of the prologue that read what the adapter changes."""
        return [part for part in program.prologue.parts if not self.products.keys().isdisjoint(part.reads)]

    def direct(self, program: Program) -> list[int]:
        """The numbers of the constants that are weights themselves and become others."""
        return [number for number in self.products if number < len(program.constants)]

    def changes(self, program: Program) -> list[int]:
        """The numbers of all constants that become others."""
        return [*self.direct(program), *(number for part in self.parts(program) for number in part.makes)]

    def applied(self, number: int, weight: torch.Tensor) -> torch.Tensor:
        """The weight on the host with what the adapter adds, computed in float32 (float64 where the weight is of that)
        and rounded once; itself where the adapter adds nothing."""
        product = self.products.get(number)
        if product is None:
            return weight
        wide = torch.promote_types(weight.dtype, torch.float32)
        a, b = (self.file.tensor(name).to(wide) for name in (product.a, product.b))
        change = (b @ a) * product.factor
        return (weight.to(wide) + (change.t() if product.transposed else change)).to(weight.dtype)


def read_adapter(path: Path, program: Program, scale: float) -> Adapter:
    """The adapter at `path` for a model of `program`, checked whole. Raises WeightsError."""
    file, config = open_checkpoint(path / FILE if path.is_dir() else path), _config(path)
    numbers = {
        name: number
        for number, item in enumerate(tensors(program))
        if item.kind == "weight"
        for group in item.names
        for name in group
    }
    products, unknown, there = {}, [], tensors(program)
    flag, modules = bool(config.get("fan_in_fan_out")), _modules(file)
    names = moved([f"{module}.weight" for module in modules], frozenset(numbers))
    for module, factors in modules.items():
        if (number := numbers.get(names[f"{module}.weight"])) is None:
            unknown.append(module)
            continue
        _check_alone(there[number], module, path)
        rank, transposed = _fitting(file, factors, there[number], flag, module)
        _refuse_contradiction(config, module, rank, path)
        factor = scale * _strength(config, module, rank, path)
        products[number] = _Product(factors["A"], factors["B"], factor, transposed)
    if unknown:
        raise WeightsError(
            "the adapter changes layers that the model does not have",
            where=str(path),
            got=some(unknown),
            expected=f"names of the model's weights, as {some(sorted(numbers)[:3])}",
        )
    _refuse_both_ways({number: product.transposed for number, product in products.items()}, there, path)
    return Adapter(file, products)


def _config(path: Path) -> dict[str, Any]:
    file = (path if path.is_dir() else path.parent) / CONFIG
    try:
        found: dict[str, Any] = json_object(file, _MOST_CONFIG_BYTES)
    except ValueError as error:
        raise WeightsError(f"the adapter's configuration cannot be read: {error}", where=str(file)) from error
    for option, value in found.items():
        served = _SERVED.get(option, ())
        if served is not None and value not in (*served, *_EMPTY):
            raise WeightsError(
                f"adapters with {option} are not served",
                where=str(file),
                expected=" or ".join(map(json.dumps, (*served, None))),
                got=repr(value)[:80],
                fix=_MERGE,
            )
    return found


def _modules(file: Checkpoint) -> dict[str, dict[str, str]]:
    """By module, the names of the factors A and B."""
    found: dict[str, dict[str, str]] = {}
    others = []
    for name in file.tensors:
        match = _KEY.fullmatch(name)
        if match is None or match["which"] in found.get(match["module"], {}):
            others.append(name)
        else:
            found.setdefault(match["module"], {})[match["which"]] = name
    halves = [module for module, factors in found.items() if len(factors) != 2]
    if others or halves or not found:
        raise WeightsError(
            "this is no LoRA adapter of linear layers",
            where=str(file.path),
            expected="MODULE.lora_A.weight and MODULE.lora_B.weight for each module, and nothing else",
            got=some(others or halves),
        )
    return found


def _refuse_contradiction(config: Mapping[str, Any], module: str, rank: int, path: Path) -> None:
    """Raises WeightsError where the configuration says another rank, or leaves out the layer: PEFT would refuse the
    file, or pass over its factors. Regular expressions are not tried: one of somebody else's may take hours."""
    ranks, said = config.get("rank_pattern"), config.get("r", rank)
    if ranks not in _EMPTY and not isinstance(ranks, dict):
        raise WeightsError("the adapter's rank_pattern is no mapping", where=str(path), got=repr(ranks)[:80])
    if isinstance(ranks, dict) and ranks:
        said = next((v for key, v in ranks.items() if _is_end(key, module)), said)
        said = said if all(map(_PLAIN_NAME.fullmatch, ranks)) else rank
    if said != rank or isinstance(said, bool):
        raise WeightsError(
            f"the adapter's factors of {module} have another rank than its configuration says",
            where=str(path),
            expected=repr(said)[:80],
            got=str(rank),
        )
    targets, left, layers = (config.get(key) for key in ("target_modules", "exclude_modules", "layers_to_transform"))
    named = not isinstance(targets, list) or any(_is_end(key, module) for key in targets)
    out = isinstance(left, list) and any(_is_end(key, module) for key in left)
    if not named or out or _is_of_another_layer(config, module):
        raise WeightsError(
            f"the adapter's file has factors of {module}, which its configuration leaves out",
            where=str(path),
            got=f"target_modules {targets!r}, exclude_modules {left!r}, layers_to_transform {layers!r}"[:200],
            fix="take the factors out of the file, or name the layer in the configuration",
        )


def _is_of_another_layer(config: Mapping[str, Any], module: str) -> bool:
    """Whether the configuration names layers by number, and a module is in none of them: as PEFT looks for the number,
    behind any name, or behind one of `layers_pattern`. Expressions there are not tried."""
    layers, names = config.get("layers_to_transform"), config.get("layers_pattern")
    layers = [layers] if isinstance(layers, int) else layers
    if not isinstance(layers, list) or not layers:
        return False
    names = [names] if isinstance(names, str) else names
    if not names:
        found = _LAYER.match(module)
        return found is None or int(found[1]) not in layers
    if not isinstance(names, list) or not all(isinstance(one, str) and _PLAIN_NAME.fullmatch(one) for one in names):
        return False
    parts = module.split(".")
    behind = [part for before, part in itertools.pairwise(parts[1:-1]) if before in names and part.isdecimal()]
    return not behind or int(behind[-1][:9]) not in layers


def _is_end(key: object, module: str) -> bool:
    """Whether a name is a module's, or the end of it."""
    return isinstance(key, str) and (module == key or module.endswith(f".{key}"))


def _strength(config: Mapping[str, Any], module: str, rank: int, path: Path) -> float:
    """What the product is multiplied by: alpha over the rank, or over its root."""
    alpha = _pattern(config.get("alpha_pattern"), module, config.get("lora_alpha", _ALPHA), path)
    if not isinstance(alpha, (int, float)) or isinstance(alpha, bool) or not abs(alpha) <= sys.float_info.max:
        raise WeightsError("the adapter's lora_alpha is no number", where=str(path), got=repr(alpha)[:80])
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _pattern(patterns: object, module: str, default: object, path: Path) -> object:
    """What PEFT's `alpha_pattern` says of a module: the ends of names, which it takes for regular expressions. Others
    than plain names are refused: an expression of somebody else's may take hours."""
    if patterns in _EMPTY:
        return default
    if not isinstance(patterns, dict) or not all(map(_PLAIN_NAME.fullmatch, patterns)):
        raise WeightsError(
            "adapters with an alpha_pattern of regular expressions are not served",
            where=str(path),
            expected="names of modules, or their ends",
            got=repr(patterns)[:80],
            fix=_MERGE,
        )
    return next((v for key, v in patterns.items() if _is_end(key, module)), default)


def _check_alone(weight: Constant, module: str, path: Path) -> None:
    """Raises WeightsError where the weight is another layer's, too: an adapter changes one of them."""
    names = [name for group in weight.names for name in group]
    if len(names) > 1:
        raise WeightsError(
            f"the adapter changes the weight of {module}, which others share",
            where=str(path),
            got=some(names),
            fix=_MERGE,
        )


def _fitting(
    file: Checkpoint, factors: Mapping[str, str], weight: Constant, flag: bool, module: str
) -> tuple[int, bool]:
    """The rank of a module's factors, and whether their product is added transposed: the shapes say so, or where the
    weight is square, `flag`, which is one for all layers. Raises WeightsError where they do not fit the weight."""
    a, b = (file.tensors[factors[which]] for which in "AB")
    kind = dtype(weight.dtype)
    if not all(one.is_floating_point and one.itemsize > 1 for one in (a.dtype, b.dtype, kind)):  # of 8 bits: quantised
        raise WeightsError(
            f"the adapter's factors of {module}, or its weight, are no floating-point numbers of 16 bits or more",
            where=str(file.path),
        )
    if len(a.shape) == len(b.shape) == len(weight.shape) == 2 and a.shape[0] == b.shape[1] > 0:
        product = (b.shape[0], a.shape[1])
        for transposed in (flag, not flag):
            if product == (weight.shape[::-1] if transposed else weight.shape):
                return a.shape[0], transposed
    raise WeightsError(
        f"the adapter's factors of {module} do not fit its weight",
        where=str(file.path),
        expected=f"lora_B [out, rank] and lora_A [rank, in] for a weight {list(weight.shape)}",
        got=f"{list(b.shape)} and {list(a.shape)}",
    )


def _refuse_both_ways(transposed: Mapping[int, bool], there: Sequence[Constant], path: Path) -> None:
    """Raises WeightsError where some layers keep their weights (in, out) and others (out, in), and a square weight does
    not say which it is."""
    square = [number for number in transposed if there[number].shape[0] == there[number].shape[1]]
    if square and len({*transposed.values()}) > 1:
        raise WeightsError(
            "the adapter changes layers whose weights lie in both ways, and square ones, which do not say in which",
            where=str(path),
            got=some([there[number].name for number in square]),
            fix=_MERGE,
        )
