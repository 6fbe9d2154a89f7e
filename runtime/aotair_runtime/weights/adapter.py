"""A LoRA adapter in PEFT's layout: what does it add to which weights?

A directory with `adapter_model.safetensors`, which holds `base_model.model.MODULE.lora_A.weight` (rank, in) and
`….lora_B.weight` (out, rank), and `adapter_config.json`. It is untrusted, and checked before any tensor is read. Source
of the formula, W + scale · alpha / rank · B·A (with rslora, alpha / √rank): the documentation of PEFT's LoraConfig.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..artifact.checkpoint import Checkpoint, open_checkpoint, some
from ..errors import WeightsError
from ..format.prologue import tensors
from ..format.schema import Constant, Part, Program

FILE, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_MOST_CONFIG_BYTES = 1 << 20
_KEY = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<which>[AB])(?:\.[A-Za-z0-9_]+)?\.weight")
# Options that change the formula, each with the values under which it is as above.
_PLAIN: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA", None),
    "bias": ("none", None),
    "use_dora": (False, None),
    "modules_to_save": ([], None),
    "layer_replication": ([], None),
    "lora_bias": (False, None),
}


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

    def changes(self, program: Program) -> list[int]:
        """The numbers of the constants that become others."""
        direct = [number for number in self.products if number < len(program.constants)]
        return [*direct, *(number for part in self.parts(program) for number in part.makes)]

    def applied(self, number: int, weight: torch.Tensor) -> torch.Tensor:
        """The weight (out, in) on the host with what the adapter adds: computed in float32, rounded once; itself where
        the adapter adds nothing."""
        product = self.products.get(number)
        if product is None:
            return weight
        a, b = (self.file.tensor(name).float() for name in (product.a, product.b))
        change = (b @ a) * product.factor
        return (weight.float() + (change.t() if product.transposed else change)).to(weight.dtype)


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
    products, unknown = {}, []
    for module, factors in _modules(file).items():
        if (number := numbers.get(f"{module}.weight")) is None:
            unknown.append(module)
            continue
        rank = file.tensors[factors["A"]].shape[0]
        product = _Product(
            factors["A"],
            factors["B"],
            scale * _strength(config, module, rank, path),
            bool(config.get("fan_in_fan_out")),
        )
        _check_alone(tensors(program)[number], module, path)
        _check_shapes(file, product, tensors(program)[number].shape, module)
        products[number] = product
    if unknown:
        raise WeightsError(
            "the adapter changes layers that the model does not have",
            where=str(path),
            got=some(unknown),
            expected=f"names of the model's weights, as {some(sorted(numbers)[:3])}",
        )
    return Adapter(file, products)


def _config(path: Path) -> dict[str, Any]:
    file = (path if path.is_dir() else path.parent) / CONFIG
    try:
        if file.stat().st_size > _MOST_CONFIG_BYTES:
            raise ValueError(f"it has more than {_MOST_CONFIG_BYTES} bytes")
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"the adapter's configuration cannot be read: {error}", where=str(file)) from error
    if not isinstance(found, dict):
        raise WeightsError("the adapter's configuration is no JSON object", where=str(file), got=repr(found)[:80])
    for option, plain in _PLAIN.items():
        if found.get(option) not in plain:
            raise WeightsError(
                f"adapters with {option} are not served",
                where=str(file),
                expected=f"{option}: {json.dumps(plain[0])}",
                got=repr(found[option])[:80],
                fix="merge it into the checkpoint (PEFT's merge_and_unload), and load that with load_weights",
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


def _strength(config: Mapping[str, Any], module: str, rank: int, path: Path) -> float:
    """What the product is multiplied by: alpha over the rank, or over its root."""
    alpha = _pattern(config.get("alpha_pattern"), module, config.get("lora_alpha", rank))
    if not isinstance(alpha, (int, float)) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise WeightsError("the adapter's lora_alpha is no number", where=str(path), got=repr(alpha)[:80])
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else max(rank, 1))


def _pattern(patterns: object, module: str, default: object) -> object:
    """What PEFT's `alpha_pattern` says of a module: its keys are the ends of names."""
    given = patterns if isinstance(patterns, dict) else {}
    for key, value in given.items():
        if module == key or module.endswith(f".{key}"):
            return value
    return default


def _check_alone(weight: Constant, module: str, path: Path) -> None:
    """Raises WeightsError where the weight is another layer's, too: an adapter changes one of them."""
    names = [name for group in weight.names for name in group]
    if len(names) > 1:
        raise WeightsError(
            f"the adapter changes the weight of {module}, which others share",
            where=str(path),
            got=some(names),
            fix="merge it into the checkpoint (PEFT's merge_and_unload), and load that with load_weights",
        )


def _check_shapes(file: Checkpoint, product: _Product, weight: Sequence[int], module: str) -> None:
    a, b = (file.tensors[name] for name in (product.a, product.b))
    want = tuple(reversed(weight)) if product.transposed else tuple(weight)
    fits = len(a.shape) == len(b.shape) == len(want) == 2 and a.shape[0] == b.shape[1]
    if not fits or (b.shape[0], a.shape[1]) != want:
        raise WeightsError(
            f"the adapter's factors of {module} do not fit its weight",
            where=str(file.path),
            expected=f"lora_B [out, rank] and lora_A [rank, in] for a weight {list(want)}",
            got=f"{list(b.shape)} and {list(a.shape)}",
        )
    if not (a.dtype.is_floating_point and b.dtype.is_floating_point):
        raise WeightsError(f"the adapter's factors of {module} are no floating-point numbers", where=str(file.path))
