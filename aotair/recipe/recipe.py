"""The recipe: what a user writes in YAML, read strictly and checked against itself."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
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

from aotair_runtime.memory.amounts import read_budget, read_bytes
from aotair_runtime.model import Model

from ..errors import RecipeError
from .config import CompilerConfig

INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
_INTEGERS = {"bool": (0, 1), "uint8": (0, 255)} | {
    f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)
}
FLOATS = ("float16", "bfloat16", "float32", "float64")
DType = Literal["bool", "int8", "int16", "int32", "int64", "uint8", "float16", "bfloat16", "float32", "float64"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# An argument, or by dots what lies within one: batch.ids, layers.0
InputName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[^.=\s]+)*$")]
CONTAINERS = {"dict": dict, "list": list, "tuple": tuple}
Size = Annotated[int, Field(ge=1)]


def _plain(value: object) -> object:
    """A constant: a plain value, or lists and dicts of such, none of them empty."""
    if isinstance(value, (list, dict)):
        if not value:
            raise ValueError(f"an empty {type(value).__name__} holds no constant: leave it to the method's default")
        for item in value.values() if isinstance(value, dict) else value:
            _plain(item)
    elif not isinstance(value, (bool, int, float, str, type(None))):
        raise ValueError(f"a constant is a number, a text, true, false or null, not a {type(value).__name__}")
    return value


Bytes = Annotated[int, BeforeValidator(read_bytes), Field(ge=0), WithJsonSchema({"type": ["integer", "string"]})]
Budget = Annotated[
    int | float, BeforeValidator(read_budget), Field(gt=0), WithJsonSchema({"type": ["integer", "number", "string"]})
]

# The end of a range: a number, or what a dimension has, as nodes or seq + 1.
_BOUND = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*(?:([+-])\s*(\d+))?")

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
    range: list[float | int | str] | None = Field(
        None,
        min_length=2,
        max_length=2,
        description="legal values: low inclusive, high exclusive; high may be a dimension: [0, nodes], [1, seq + 1]",
    )
    mask: Literal["left", "right", "any"] | None = Field(
        None, description="zeros and ones, with a one in each row at least: padded on the left or right, or anywhere"
    )
    pad: Literal["any"] | bool | int | float | dict[Name, Literal["any"] | bool | int | float] | None = Field(
        None,
        description="what fills the padded part: a number, or 'any' where its value does no harm; null: never padded; "
        "{batch: 0}: padded along these dimensions alone",
    )
    distinct: bool = Field(False, description="all values differ: rows of a cache, say, that a call writes into")
    host: bool = Field(
        False, description="the model takes a list of ints, which kernels read on the host; replaced at each call"
    )
    mutated: bool = Field(False, description="the model writes into it; the caller's memory is used in place")

    @model_validator(mode="after")
    def _consistent(self) -> "InputPart":
        if self.dtype in INTEGERS and self.range is None and self.mask is None:
            raise ValueError("an integer input needs range: [low, high), the legal values that the build may use")
        self._check_range()
        if isinstance(self.pad, dict) and (not self.pad or len({repr(value) for value in self.pad.values()}) > 1):
            raise ValueError("pad: {dimension: value} needs one value, the same for all dimensions that it names")
        if isinstance(self.pad, dict) and (unknown := [dim for dim in self.pad if dim not in self.shape]):
            raise ValueError(f"pad names {unknown[0]}, which is no dynamic dimension of the shape")
        if self.distinct and (self.dtype not in INTEGERS or self.fill == "any"):
            raise ValueError("distinct is for integers, padded with one that is nobody's")
        if self.mask is not None and (self.range is not None or self.distinct or self.host or not self.shape):
            raise ValueError("a mask holds zeros and ones along its last dimension: remove range, distinct and host")
        if self.host and (self.mutated or self.dtype != "int64" or len(self.shape) != 1):
            raise ValueError("a host input is a list of ints: dtype int64, one dimension, not mutated")
        if self.mutated and self.pad is not None:
            raise ValueError("a mutated input is used in place and cannot be padded: remove pad")
        return self

    def _check_range(self) -> None:
        low, high = self.range or (0, 1)
        if isinstance(low, str) or (isinstance(high, str) and (self.dtype == "bool" or not _BOUND.fullmatch(high))):
            raise ValueError(f"range is [number, number], [number, dimension] or [number, dimension + 1]: {self.range}")
        if not isinstance(high, str) and not low < high:
            raise ValueError(f"range must be [low, high) with low < high, not {self.range}")
        if self.dtype in FLOATS or self.range is None:
            return
        least, most = _INTEGERS[self.dtype]
        if low < least or (not isinstance(high, str) and high > most + 1) or not all(map(_is_whole, self.range)):
            raise ValueError(f"{self.dtype} holds whole numbers from {least} to {most}: range is {self.range}")

    @property
    def fill(self) -> object:
        """What fills the padded part, along whatever dimensions; None: the input is never padded."""
        return next(iter(self.pad.values())) if isinstance(self.pad, dict) else self.pad

    def pads(self, dim: str) -> bool:
        """Whether the input may be padded along a dimension that it has."""
        return dim in self.pad if isinstance(self.pad, dict) else self.pad is not None

    def bounds(self, sizes: Mapping[str, int]) -> list[float | int] | None:
        """`range` in numbers, where the dimensions have these sizes; that of any boolean or mask."""
        if self.range is None:
            return [0, 2] if self.dtype == "bool" or self.mask is not None else None
        low, high = self.range
        return [low, _bound(high, sizes) if isinstance(high, str) else high]

    def at(self, sizes: Mapping[str, int]) -> "InputPart":
        """The input with `range` in numbers and `pad` as one value."""
        return self.model_copy(update={"range": self.bounds(sizes), "pad": self.fill})


def _bound(text: str, sizes: Mapping[str, int]) -> int:
    dim, sign, more = _BOUND.fullmatch(text).groups()
    return sizes[dim] + (int(more or 0) if sign != "-" else -int(more))


def _is_whole(value: object) -> bool:
    return isinstance(value, str) or value == int(value)


class DimensionPart(_Part):
    """One dynamic dimension."""

    min: Size | None = Field(None, description="the smallest size of a call; null: found by trying the model")


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


Inputs = dict[InputName, InputPart]
Constants = dict[InputName, Annotated[Any, BeforeValidator(_plain)]]
Types = dict[InputName, Annotated[str, Field(pattern=r"^(dict|list|tuple|[^:]+:[A-Za-z_][A-Za-z0-9_.]*)$")]]
Outputs = dict[int | str, OutputPart]
Buckets = dict[Name, list[Size]] | list[dict[Name, Size]]


Dimensions = dict[Name, DimensionPart]


class EntryPart(_Part):
    """One callable of the artifact."""

    method: Name = Field("forward", description="the model's method that it calls")
    inputs: Inputs = Field(min_length=1)
    buckets: Buckets = Field(default_factory=dict)
    outputs: Outputs = Field(default_factory=dict, description="as the recipe's, for this entry point")
    samples: str | None = Field(None, description="as verify.samples, for this entry point")
    constants: Constants = Field(default_factory=dict, description="as the recipe's, for this entry point")
    types: Types = Field(default_factory=dict, description="as the recipe's, for this entry point")
    dimensions: Dimensions = Field(default_factory=dict, description="as the recipe's, for this entry point")

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
    inputs: Inputs = Field(
        default_factory=dict, description="the tensors that the method takes; dotted names lie within an argument"
    )
    constants: Constants = Field(
        default_factory=dict, description="its other arguments, or parts of them: numbers, texts, true, false, null"
    )
    types: Types = Field(
        default_factory=dict,
        description="what holds the parts of an argument, where the method's annotation does not say: dict, list, "
        "tuple, or a class (module:Class)",
    )
    buckets: Buckets = Field(
        default_factory=dict, description="sizes of each dynamic dimension (their product), or an explicit list"
    )
    dimensions: Dimensions = Field(default_factory=dict, description="what is special about dynamic dimensions")
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
            changes |= {"constants": part.constants, "types": part.types, "dimensions": part.dimensions}
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

    def constant_values(self) -> dict[str, object]:
        """The constants, each plain value under a dotted name of its own."""
        return dict(_leaves(self.constants))

    def dims(self) -> tuple[str, ...]:
        """The dynamic dimensions, in the order in which the inputs name them."""
        return tuple(dict.fromkeys(d for item in self.inputs.values() for d in item.shape if isinstance(d, str)))

    def paddable(self, dim: str) -> bool:
        """Whether calls may be smaller than their bucket along `dim`: every input that has it says how to pad."""
        return all(item.pads(dim) for item in self.inputs.values() if dim in item.shape)

    def least(self, dim: str) -> int:
        """The smallest size of a call along `dim`, as far as the recipe says; no range may be empty."""
        found = self.dimensions[dim].min if dim in self.dimensions else None
        bounds = [item.range for item in self.inputs.values() if item.range and isinstance(item.range[1], str)]
        more = [int(low) + 1 - _bound(high, {dim: 0}) for low, high in bounds if _BOUND.fullmatch(high)[1] == dim]
        return max(1, found or 1, *more)

    def inputs_at(self, sizes: Mapping[str, int]) -> dict[str, InputPart]:
        """The inputs where the dimensions have these sizes."""
        return {name: item.at(sizes) for name, item in self.inputs.items()}

    def with_dimensions(self, entry: str, parts: Mapping[str, DimensionPart]) -> "Recipe":
        """The same recipe with other dimensions of an entry point."""
        one = self.entry_points[entry] if self.entry_points else self
        return self._with_part(entry, "dimensions", {**one.dimensions, **parts})

    def with_inputs(self, entry: str, inputs: Mapping[str, InputPart]) -> "Recipe":
        """The same recipe with other inputs of an entry point, or the same ones in another order."""
        return self._with_part(entry, "inputs", dict(inputs))

    def _with_part(self, entry: str, field: str, value: object) -> "Recipe":
        """The same recipe with another value of one field of an entry point."""
        update = {field: value}
        if self.entry_points:
            update = {"entry_points": {**self.entry_points, entry: self.entry_points[entry].model_copy(update=update)}}
        changed = self.model_copy(update=update)
        changed._file, changed._entry, changed._method = self._file, self._entry, self._method
        changed._model = self._model
        return changed

    def bucket_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Every bucket as sizes in the order of `dims()`, smallest first."""
        dims = self.dims()
        if isinstance(self.buckets, dict):
            buckets = itertools.product(*(self.buckets[dim] for dim in dims))
        else:
            buckets = (tuple(bucket[dim] for dim in dims) for bucket in self.buckets)
        return tuple(sorted(set(buckets))) or ((),)


def _leaves(values: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, (list, dict)):
            items = value if isinstance(value, dict) else dict(enumerate(value))
            yield from _leaves(items, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


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
    while parents:
        if not isinstance(data, dict):
            break
        # A key may have dots itself: inputs.batch.ids.dtype
        keys = [".".join(parents[:count]) for count in range(len(parents), 0, -1)]
        found = next((key for key in keys if key in data), parents[0])
        if data.get(found) is None:
            data[found] = {}
        data, parents = data[found], parents[found.count(".") + 1 :]
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
        _check_names(one, at)
        _check_buckets(one, at)
        _check_distinct(one, at)
    return recipe


def _check_entries(recipe: Recipe, where: str) -> None:
    fields = {"inputs": recipe.inputs, "buckets": recipe.buckets, "outputs": recipe.outputs}
    fields |= {"dimensions": recipe.dimensions}
    fields |= {"constants": recipe.constants, "types": recipe.types, "verify.samples": recipe.verify.samples}
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


def _check_names(recipe: Recipe, where: str) -> None:
    """Inputs and constants are apart, and what lies in a list is there without a gap."""
    names = [*recipe.inputs, *recipe.constant_values()]
    steps: dict[str, list[str]] = {}
    for name in names:
        for end in (end for end, sign in enumerate(name) if sign == "."):
            steps.setdefault(name[:end], []).append(name[end + 1 :].partition(".")[0])
    for name in names:
        if names.count(name) > 1 or name in steps:
            what = "an input and a constant" if names.count(name) > 1 else f"{name} itself, and {name}.{steps[name][0]}"
            raise RecipeError(
                f"inputs.{name}: there are {what}", where=where, expected="one for each argument or part of one",
                fix="remove one of them",
            )  # fmt: skip
    for path, found in steps.items():
        kinds, numbers = {step.isdigit() for step in found}, list(dict.fromkeys(found))
        listed = kinds == {True} and recipe.types.get(path) != "dict"
        mine = [n for n in numbers if any(f"{name}.".startswith(f"{path}.{n}.") for name in recipe.inputs)]
        gap = listed and (sorted(map(int, numbers)) != list(range(len(numbers))) or mine != sorted(mine, key=int))
        if len(kinds) > 1 or gap:
            raise RecipeError(
                f"inputs.{path}: it is no list and no dict", where=where, got=", ".join(found),
                expected="names, or the numbers 0, 1, 2 … in order", fix="name each thing that lies in it",
            )  # fmt: skip
    for path in [path for path in recipe.types if path not in steps]:
        raise RecipeError(
            f"types.{path}: nothing lies in it", where=where, expected=f"an input or constant {path}.NAME",
            got=", ".join(names), fix="remove it",
        )  # fmt: skip


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
    for name, item in recipe.inputs.items():
        high = item.range[1] if item.range else None
        if isinstance(high, str) and _BOUND.fullmatch(high)[1] not in dims:
            raise RecipeError(
                f"inputs.{name}.range: no input has the dimension {_BOUND.fullmatch(high)[1]}", where=where, got=high,
                expected=f"a number, or one of {', '.join(recipe.dims()) or 'no dimensions'}",
            )  # fmt: skip
    _check_least(recipe, where)
    if dims and not groups:
        raise RecipeError("buckets: the list is empty", where=where, expected="at least one bucket")


def _check_least(recipe: Recipe, where: str) -> None:
    for dim in [dim for dim in recipe.dimensions if dim not in recipe.dims()]:
        raise RecipeError(
            f"dimensions.{dim}: no input has this dimension", where=where,
            expected=f"dimensions of the inputs: {', '.join(recipe.dims()) or 'none'}", got=dim, fix="remove it",
        )  # fmt: skip
    for sizes in recipe.bucket_sizes():
        for dim, size in zip(recipe.dims(), sizes):
            if size < recipe.least(dim):
                raise RecipeError(
                    f"buckets: there is one with {dim} {size}, and no call may be so small", where=where,
                    expected=f"{recipe.least(dim)} at least, by dimensions.{dim}.min or a range that is not empty",
                    got=str(size), fix="leave that bucket out",
                )  # fmt: skip


def _check_distinct(recipe: Recipe, where: str) -> None:
    for name, item in recipe.inputs.items():
        for sizes in recipe.bucket_sizes() if item.distinct else ():
            by_dim = dict(zip(recipe.dims(), sizes))
            low, high = map(int, item.bounds(by_dim))
            count, values = math.prod(by_dim.get(d, d) for d in item.shape), high - low
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
