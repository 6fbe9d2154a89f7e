"""The recipe: what a user writes in YAML, read strictly and checked against itself."""

import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from aotair_runtime.model import Model

from .config import CompilerConfig
from .errors import RecipeError

INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
FLOATS = ("float16", "bfloat16", "float32", "float64")
DType = Literal["bool", "int8", "int16", "int32", "int64", "uint8", "float16", "bfloat16", "float32", "float64"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Size = Annotated[int, Field(ge=1)]
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def _bytes(value: object) -> object:
    """A number of bytes, as such or as text with a unit: 24GiB."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
    if isinstance(value, str):
        if match is None or match[2] not in _UNITS:
            raise ValueError(f"expected a number of bytes, or one with a unit ({', '.join(_UNITS)[2:]}): {value!r}")
        return int(float(match[1]) * _UNITS[match[2]])
    return value


def _budget(value: object) -> object:
    """Bytes, or a share of the device: a fraction, or a percentage."""
    if isinstance(value, str) and value.strip().endswith("%"):
        value = float(value.strip()[:-1]) / 100
    value = _bytes(value)
    if isinstance(value, float) and not 0 < value <= 1:
        raise ValueError(f"a share of the device is more than 0 and at most 1, not {value}")
    return value


Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=0), WithJsonSchema({"type": ["integer", "string"]})]
Budget = Annotated[
    int | float, BeforeValidator(_budget), Field(gt=0), WithJsonSchema({"type": ["integer", "number", "string"]})
]

_ATTRIBUTES = ("artifact", "promise", "entry_points")  # of a loaded model, beside those of its class

# By dtype, the narrowest first: (atol, rtol) for numbers of the order of one, after some layers.
_TOLERANCES = {"bfloat16": (5e-2, 5e-2), "float16": (1e-2, 1e-2)}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelPart(_Part):
    """Where the model comes from. Only a model that is given as an object has no factory."""

    model_config = ConfigDict(json_schema_extra={"required": ["factory"]})

    factory: str | None = Field(
        None,
        pattern=r"^[^:]+:[A-Za-z_][A-Za-z0-9_.]*$",
        description="importable callable (package.module:callable) or path/to/file.py:callable; returns an nn.Module",
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="keyword arguments for the factory")
    weights: str | None = Field(
        None, description=".safetensors file, or directory of them (sharded or not), to load over the factory's"
    )
    dtype: Literal["float16", "bfloat16", "float32", "float64"] | None = Field(
        None, description="floating-point parameters and buffers are cast to it; null leaves them"
    )
    share_equal_weights: bool = Field(
        True, description="store weights of equal values once; false: other weights may be loaded later (load_weights)"
    )


class TargetPart(_Part):
    """What the artifact will run on."""

    device: Literal["cpu", "cuda", "npu"] = "cpu"
    soc: str | None = Field(None, description="how the name of the device begins, as Ascend910B; null: any")
    torch_npu: str | None = Field(
        None, pattern=r"^\d+(\.\d+)*$", description="the least version of torch_npu on the node; null: any"
    )
    memory_budget: Budget | None = Field(
        None, description="the most that the model may take: bytes (24GiB), or a share of the device (0.9, 90%)"
    )
    device_memory: Bytes | None = Field(
        None, description="bytes of the device, so that a share can be checked at build time"
    )
    workspace: Bytes | None = Field(
        None, description="bytes that kernels take beside planned memory, for each stream; null: what cuBLAS takes"
    )
    reserve: Bytes = Field(0, description="bytes that the device itself and its graphs take")
    allow_namespaces: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]] = Field(
        default_factory=list, description="namespaces of custom ops that every node defines and allows when it loads"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "TargetPart":
        if self.torch_npu is not None and self.device != "npu":
            raise ValueError("torch_npu is a requirement of device: npu")
        return self


class InputPart(_Part):
    """One tensor argument of the model."""

    shape: list[Size | Name] = Field(description="sizes, or names of dynamic dimensions")
    dtype: DType
    range: list[float | int] | None = Field(
        None, min_length=2, max_length=2, description="legal values: low inclusive, high exclusive"
    )
    pad: Literal["any"] | bool | int | float | None = Field(
        None,
        description="what fills the padded part: a number, or 'any' where its value does no harm; null: never padded",
    )
    distinct: bool = Field(False, description="all values differ: rows of a cache, say, that a call writes into")
    host: bool = Field(
        False, description="the model takes a list of ints, which kernels read on the host; replaced at each call"
    )
    mutated: bool = Field(False, description="the model writes into it; the caller's memory is used in place")

    @model_validator(mode="after")
    def _consistent(self) -> "InputPart":
        if self.dtype in INTEGERS and self.range is None:
            raise ValueError("an integer input needs range: [low, high), the legal values that the build may use")
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError(f"range must be [low, high) with low < high, not {self.range}")
        if self.distinct and (self.dtype not in INTEGERS or self.pad == "any"):
            raise ValueError("distinct is for integers, padded with one that is nobody's")
        if self.host and (self.mutated or self.dtype != "int64" or len(self.shape) != 1):
            raise ValueError("a host input is a list of ints: dtype int64, one dimension, not mutated")
        if self.mutated and self.pad is not None:
            raise ValueError("a mutated input is used in place and cannot be padded: remove pad")
        return self


class OutputPart(_Part):
    """One tensor that the model returns."""

    clone: bool = Field(False, description="each call gives a tensor of its own, which no later call overwrites")


class VerifyPart(_Part):
    """How the build compares with the original model."""

    atol: float | None = Field(None, ge=0, description="null: as the narrowest dtype allows, 1e-5 for float32")
    rtol: float | None = Field(None, ge=0, description="null: as the narrowest dtype allows, 1e-4 for float32")
    seed: int = Field(0, ge=0)
    samples: str | None = Field(None, description=".safetensors file of real inputs, named INPUT or SAMPLE.INPUT")


class QuantizePart(_Part):
    """Linear layers to compute in int8."""

    linear: Literal["int8_dynamic"] = Field(
        description="int8_dynamic: int8 weights, a scale for each channel; int8 activations, a scale for each token"
    )
    skip: list[str] = Field(
        default_factory=lambda: ["*lm_head"], description="names of modules to leave, with * and ?; lm_head by default"
    )


Inputs = dict[Name, InputPart]
Outputs = dict[int | str, OutputPart]
Buckets = dict[Name, list[Size]] | list[dict[Name, Size]]


class EntryPart(_Part):
    """One callable of the artifact."""

    method: Name = Field("forward", description="the model's method that it calls")
    inputs: Inputs = Field(min_length=1)
    buckets: Buckets = Field(default_factory=dict)
    outputs: Outputs = Field(default_factory=dict, description="as the recipe's, for this entry point")
    samples: str | None = Field(None, description="as verify.samples, for this entry point")

    @field_validator("buckets")
    @classmethod
    def _some(cls, buckets):
        return _distinct(buckets)


def _distinct(buckets):
    if isinstance(buckets, dict):
        for name, sizes in buckets.items():
            if not sizes or len(set(sizes)) != len(sizes):
                raise ValueError(f"{name}: expected distinct sizes, got {sizes}")
    return buckets


class Recipe(_Part):
    """A model, its inputs and buckets, and how to build them.

    One entry point, `forward`, has its inputs and buckets here; several have theirs under `entry_points`. The stages
    of a build see one at a time: `entries()`.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    model: ModelPart
    target: TargetPart = Field(default_factory=TargetPart)
    inputs: Inputs = Field(default_factory=dict)
    buckets: Buckets = Field(
        default_factory=dict, description="sizes of each dynamic dimension (their product), or an explicit list"
    )
    outputs: Outputs = Field(
        default_factory=dict, description="what is special about tensors that the model returns, by position or name"
    )
    entry_points: dict[Name, EntryPart] = Field(
        default_factory=dict,
        description="instead of inputs and buckets: callables that share weights and memory",
    )
    fusion: list[Annotated[str, Field(pattern=r"^[^:]+:[A-Za-z_][A-Za-z0-9_.]*$")]] = Field(
        default_factory=list, description="functions (module:function) that register fusion rules for this build"
    )
    quantize: QuantizePart | None = Field(None, description="null: compute in the model's own dtypes")
    verify: VerifyPart = Field(default_factory=VerifyPart)
    config: CompilerConfig = Field(default_factory=CompilerConfig)

    # Not a field: where the recipe was read from, for errors and relative paths.
    _file: Path | None = None
    # Neither: of a recipe of one entry point, its name and the method that it calls.
    _entry: str = "forward"
    _method: str = "forward"
    # Nor this: a model that is there already, instead of a factory.
    _model: torch.nn.Module | None = None

    @model_validator(mode="after")
    def _served(self) -> "Recipe":
        if self.quantize is not None and self.target.device != "npu":
            raise ValueError("quantize is for target.device: npu")
        return self

    @field_validator("buckets")
    @classmethod
    def _some(cls, buckets):
        return _distinct(buckets)

    @property
    def where(self) -> str:
        file = str(self._file) if self._file else f"recipe {self.name!r}"
        return file if self._entry == "forward" else f"{file}: entry_points.{self._entry}"

    @property
    def entry(self) -> str:
        """The name of the entry point, in a recipe of one."""
        return self._entry

    @property
    def method(self) -> str:
        """The method of the model that the entry point calls, in a recipe of one."""
        return self._method

    def entries(self) -> tuple["Recipe", ...]:
        """A recipe of one entry point for each: with its inputs, buckets and samples as the recipe's own."""
        if not self.entry_points:
            return (self,)
        found = []
        for name, part in self.entry_points.items():
            verify = self.verify.model_copy(update={"samples": part.samples})
            changes = {"inputs": part.inputs, "buckets": part.buckets, "outputs": part.outputs}
            changes |= {"entry_points": {}, "verify": verify}
            one = self.model_copy(update=changes)
            one._file, one._entry, one._method, one._model = self._file, name, part.method, self._model
            found.append(one)
        return tuple(found)

    @property
    def model_object(self) -> torch.nn.Module | None:
        """The model, where there is no factory to make one."""
        return self._model

    @property
    def folder(self) -> Path:
        """What relative paths in the recipe are relative to."""
        return self._file.parent if self._file else Path.cwd()

    def with_config(self, config: CompilerConfig) -> "Recipe":
        """The same recipe with another config."""
        changed = self.model_copy(update={"config": config})
        changed._file, changed._entry, changed._method, changed._model = (
            self._file,
            self._entry,
            self._method,
            self._model,
        )
        return changed

    def tolerance(self) -> tuple[float, float]:
        """(atol, rtol) of the proof: those of `verify`, else those of the narrowest dtype of model and inputs."""
        kinds = {self.model.dtype, *(item.dtype for one in self.entries() for item in one.inputs.values())}
        atol, rtol = next((found for kind, found in _TOLERANCES.items() if kind in kinds), (1e-5, 1e-4))
        given = self.verify
        return atol if given.atol is None else given.atol, rtol if given.rtol is None else given.rtol

    def dims(self) -> tuple[str, ...]:
        """The dynamic dimensions, in the order in which the inputs name them."""
        return tuple(dict.fromkeys(d for item in self.inputs.values() for d in item.shape if isinstance(d, str)))

    def paddable(self, dim: str) -> bool:
        """Whether calls may be smaller than their bucket along `dim`: every input that has it says how to pad."""
        return all(item.pad is not None for item in self.inputs.values() if dim in item.shape)

    def bucket_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Every bucket as sizes in the order of `dims()`, smallest first."""
        dims = self.dims()
        if isinstance(self.buckets, dict):
            buckets = itertools.product(*(self.buckets[dim] for dim in dims))
        else:
            buckets = (tuple(bucket[dim] for dim in dims) for bucket in self.buckets)
        return tuple(sorted(set(buckets))) or ((),)


def read_recipe(path: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """The recipe in a YAML file; raises RecipeError with the path to the field at fault.

    `changes` give fields other values: `target.device=npu`, with the value as YAML.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecipeError("there is no such recipe", where=str(path), fix="write one with: aotair init") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"not readable: {error}", where=str(path)) from error
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"not YAML: {error}", where=str(path)) from error
    if not isinstance(data, dict):
        raise RecipeError(
            "not a recipe", where=str(path), expected="a mapping with name, model, inputs …", got=repr(data)[:60]
        )
    for change in changes:
        _change(data, change, str(path))
    return parse_recipe(data, path)


def _change(data: dict, change: str, where: str) -> None:
    name, equals, text = change.partition("=")
    *parents, last = name.split(".")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {name}: not YAML: {error}", where=where, got=text) from error
    for parent in parents:
        if isinstance(data, dict) and data.get(parent) is None:
            data[parent] = {}
        data = data[parent] if isinstance(data, dict) else None
    if not equals or not all((*parents, last)) or not isinstance(data, dict):
        raise RecipeError("--set: no field of the recipe", where=where, expected="PATH.TO.FIELD=VALUE", got=change)
    data[last] = value


def of_model(model: torch.nn.Module, parts: dict[str, object]) -> Recipe:
    """A recipe of a model that is there already, under the name of its class where `parts` give none. An input may be
    a tensor, which says its shape and dtype. Raises RecipeError."""
    inputs = parts.get("inputs")
    if isinstance(inputs, dict):
        inputs = {name: _described(item) if isinstance(item, torch.Tensor) else item for name, item in inputs.items()}
        parts = {**parts, "inputs": inputs}
    given = {"name": type(model).__name__.strip("_") or "model", **parts}
    given["model"] = {**given.get("model", {})}
    return parse_recipe(given, model=model)


def _described(tensor: torch.Tensor) -> dict[str, object]:
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}


def parse_recipe(data: dict, file: Path | None = None, *, model: torch.nn.Module | None = None) -> Recipe:
    """The recipe in `data`; `file` is where it came from; `model` is there instead of a factory. Raises RecipeError."""
    where = str(file) if file else "recipe"
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise _explain(error, where) from error
    recipe._file, recipe._model = file, model
    if (recipe.model.factory is None) == (model is None):
        what = "missing" if model is None else "given beside a model"
        fix = "add model.factory to the recipe" if model is None else "leave one of them out"
        raise RecipeError(f"model.factory: {what}", where=where, fix=fix)
    _check_entries(recipe, where)
    for one in recipe.entries():
        at = where if one.entry == "forward" else f"{where}: entry_points.{one.entry}"
        _check_buckets(one, at)
        _check_distinct(one, at)
    return recipe


def _check_entries(recipe: Recipe, where: str) -> None:
    fields = {"inputs": recipe.inputs, "buckets": recipe.buckets, "outputs": recipe.outputs}
    fields["verify.samples"] = recipe.verify.samples
    if not recipe.entry_points and not recipe.inputs:
        raise RecipeError(
            "inputs: missing",
            where=where,
            expected="inputs, or entry_points that have theirs",
            fix="add inputs to the recipe",
        )
    for path in [path for path, value in fields.items() if value] if recipe.entry_points else ():
        raise RecipeError(
            f"{path}: given beside entry_points", where=where, fix="move it into each entry point that it is for"
        )
    for name in recipe.entry_points:
        if hasattr(Model, name) or name in _ATTRIBUTES:
            raise RecipeError(
                f"entry_points.{name}: a loaded model has an attribute of that name", where=where, fix="rename it"
            )


def _check_buckets(recipe: Recipe, where: str) -> None:
    dims = set(recipe.dims())
    groups = [recipe.buckets] if isinstance(recipe.buckets, dict) else recipe.buckets
    for number, group in enumerate(groups):
        path = "buckets" if isinstance(recipe.buckets, dict) else f"buckets[{number}]"
        for dim in dims - set(group):
            owner = next(name for name, item in recipe.inputs.items() if dim in item.shape)
            raise RecipeError(
                f"{path}: the dynamic dimension {dim!r} of inputs.{owner}.shape has no sizes", where=where,
                expected=f"buckets.{dim}: [size, …]", got=f"sizes for {', '.join(group) or 'nothing'}",
                fix=f"add {dim} to buckets, or write a number in the shape",
            )  # fmt: skip
        for dim in set(group) - dims:
            raise RecipeError(
                f"{path}.{dim}: no input has this dimension", where=where,
                expected=f"dimensions of the inputs: {', '.join(recipe.dims()) or 'none'}", got=dim, fix="remove it",
            )  # fmt: skip
    if dims and not groups:
        raise RecipeError("buckets: the list is empty", where=where, expected="at least one bucket")


def _check_distinct(recipe: Recipe, where: str) -> None:
    for name, item in recipe.inputs.items():
        for sizes in recipe.bucket_sizes() if item.distinct else ():
            by_dim = dict(zip(recipe.dims(), sizes))
            count, values = math.prod(by_dim.get(d, d) for d in item.shape), int(item.range[1]) - int(item.range[0])
            if count > values:
                raise RecipeError(
                    f"inputs.{name}.range: there are fewer values than a bucket needs distinct ones", where=where,
                    expected=f"{count} for the bucket {', '.join(f'{d}={s}' for d, s in by_dim.items())}",
                    got=f"{values}", fix="widen range, or make the bucket smaller",
                )  # fmt: skip


def _explain(error: ValidationError, where: str) -> RecipeError:
    details = error.errors(include_url=False)
    first = min(details, key=lambda item: (item["type"] != "extra_forbidden", len(details)))
    path = _path(first)
    got = first.get("input")
    expected, fix = "", ""
    what = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        what, expected = "unknown key", "one of " + ", ".join(_known(first))
        got, fix = first["loc"][-1], "remove it or correct its name"
    elif first["type"] == "missing":
        what, got = "missing", None
        fix = f"add {path} to the recipe"
    else:
        expected, what = what[:1].lower() + what[1:], "wrong value"
    return RecipeError(
        f"{path}: {what}", where=where, expected=expected, got="" if got is None else repr(got)[:80], fix=fix
    )


def _path(item: ErrorDetails) -> str:
    """`inputs.x.shape[1]`, without the names of union branches that pydantic adds."""
    text = ""
    for part in item["loc"]:
        if isinstance(part, int):
            text += f"[{part}]"
        elif (
            "[" not in part
            and part not in ("str", "int", "float", "bool", "none")
            and not part.startswith("constrained")
        ):
            text += f".{part}" if text else part
    return text or "recipe"


def _known(item: ErrorDetails) -> list[str]:
    """The keys that the part of the recipe at fault does have."""
    model: Any = Recipe
    for part in item["loc"][:-1]:
        field = getattr(model, "model_fields", {}).get(part)
        if field is None:
            continue
        candidates = (field.annotation, *getattr(field.annotation, "__args__", ()))
        model = next((kind for kind in candidates if hasattr(kind, "model_fields")), model)
    return list(model.model_fields)
