"""A first recipe, guessed from a model's signature and tried once; what could not be known is marked."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

from ..errors import ModelError, user_frame
from .imports import import_callable, importing_from

_DEFAULT_SIZES = {"batch": [1, 8], "seq": [16, 64]}


@dataclass(frozen=True)
class _Guess:
    """One input: its shape, dtype, legal values, and padding."""

    shape: list[int | str]
    dtype: str = "float32"
    range: list[int] | None = None
    pad: object = None
    mask: str | None = None


def first_recipe(factory: str, kwargs: Mapping[str, object] | None = None) -> str:
    """YAML for the model that `factory` makes with these arguments; raises ModelError where it makes none."""
    with importing_from(Path.cwd()):
        return _written(factory, dict(kwargs or {}), _made(factory, kwargs or {}))


def _made(factory: str, kwargs: Mapping[str, object]) -> torch.nn.Module:
    function = import_callable(factory, Path.cwd(), "aotair init", "factory")
    try:
        model = function(**kwargs)
    except Exception as error:
        raise ModelError(
            f"{factory} failed{user_frame(error)}: {type(error).__name__}: {error}",
            where="aotair init",
            expected="a callable that makes the model",
            fix="give what it needs: --kwarg NAME=VALUE, the value as YAML",
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise ModelError(
            f"{factory} returned no model", where="aotair init", expected="a torch.nn.Module", got=type(model).__name__
        )
    return model


def _written(factory: str, kwargs: dict[str, object], model: torch.nn.Module) -> str:
    constants = _constants(model)
    guesses = {name: _guess(name, model) for name in _tensor_arguments(model) if name not in constants}
    dims = {dim: sizes for dim, sizes in _DEFAULT_SIZES.items() if any(dim in g.shape for g in guesses.values())}
    recipe = {
        "name": factory.rpartition(":")[2].rpartition(".")[2].lower(),
        "model": {"factory": factory} | ({"kwargs": kwargs} if kwargs else {}),
        "target": {"device": "cpu"},
        "inputs": {name: _plain(guess) for name, guess in guesses.items()},
        "buckets": dims,
    } | ({"constants": constants} if constants else {})
    text = yaml.safe_dump(recipe, sort_keys=False, default_flow_style=None, width=110)
    return f"{_remark(model.eval(), guesses, constants)}\n{text}"


def read_kwargs(texts: Sequence[str]) -> dict[str, object]:
    """`NAME=VALUE` texts, with the values as YAML; raises ModelError."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ModelError(f"--kwarg {name}: not YAML: {error}", where="aotair init", got=value) from error
        if not equals or not name.isidentifier():
            raise ModelError("--kwarg: no argument", where="aotair init", expected="NAME=VALUE", got=text)
    return found


def _tensor_arguments(model: torch.nn.Module) -> list[str]:
    """The arguments of `forward` that must be given, and an attention mask where there is one."""
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [p for p in parameters if p.kind in kinds]
    needed = [p.name for p in named if p.default is p.empty]
    usual = [p.name for p in named if p.name in ("input_ids", "pixel_values", "input_features", "attention_mask")]
    return list(dict.fromkeys([*needed, *(usual if not needed or "input_ids" in needed else [])]))


def _constants(model: torch.nn.Module) -> dict[str, object]:
    """A value for each argument that must be given and is no tensor, as its annotation says."""
    kinds = {int: 1, float: 1.0, bool: False, str: ""}
    parameters = inspect.signature(model.forward).parameters.values()
    found = {p.name: getattr(p.annotation, "__name__", p.annotation) for p in parameters if p.default is p.empty}
    return {name: value for name, kind in found.items() for known, value in kinds.items() if kind == known.__name__}


def _guess(name: str, model: torch.nn.Module) -> _Guess:
    config = getattr(model, "config", None)
    if "mask" in name:
        return _Guess(["batch", "seq"], "int64", pad=0, mask="right")
    if name.endswith(("ids", "tokens", "indices", "labels")):
        rows = [module.num_embeddings for module in model.modules() if isinstance(module, torch.nn.Embedding)]
        return _Guess(["batch", "seq"], "int64", [0, max(rows, default=2)], "any")
    if "pixel" in name or "image" in name:
        size = getattr(config, "image_size", 224)
        return _Guess(["batch", getattr(config, "num_channels", 3), size, size], pad="any")
    first = next((m for m in model.modules() if isinstance(m, (torch.nn.Linear, torch.nn.Conv2d))), None)
    if isinstance(first, torch.nn.Conv2d):
        return _Guess(["batch", first.in_channels, 224, 224], pad="any")
    return _Guess(["batch", first.in_features if first is not None else 16], pad="any")


def _plain(guess: _Guess) -> dict[str, object]:
    values = {"shape": guess.shape, "dtype": guess.dtype, "range": guess.range, "pad": guess.pad}
    values |= {"mask": guess.mask}
    return {key: value for key, value in values.items() if value is not None}


def _remark(model: torch.nn.Module, guesses: Mapping[str, _Guess], constants: Mapping[str, object]) -> str:
    """Whether the model took the guessed inputs, as a comment."""
    sizes = {dim: values[0] for dim, values in _DEFAULT_SIZES.items()}
    inputs = {}
    for name, guess in guesses.items():
        shape = [sizes[size] if isinstance(size, str) else size for size in guess.shape]
        inputs[name] = torch.zeros(shape, dtype=getattr(torch, guess.dtype))
    try:
        with torch.no_grad():
            model(**inputs, **constants)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"# Guessed from the signature, but the model refused these inputs: {reason}\n# Correct them first."
    return (
        "# Guessed from the signature; the model took these inputs. Set the ranges and buckets to what you will send."
    )
