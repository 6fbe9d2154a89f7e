"""The recipe: what a user writes in YAML, as strict dataclasses of pydantic."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from aotair_runtime.format.limits import MOST_MESHES

from ..target.target import Target
from .config import CompilerConfig
from .part import FileName, Part, Size
from .quantize_part import QuantizePart
from .target_part import TargetPart

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


# What fills the padded part of an input.
Fill = Literal["any"] | bool | int | float

# The end of a range: a number, or what a dimension has, as nodes or seq + 1.
BOUND = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*(?:([+-])\s*(\d+))?")


class WeightsPart(Part):
    """A checkpoint whose names are not the model's."""

    path: str = Field(description=".safetensors file, or directory of them")
    prefix: str = Field(default="", description="what is put before each of its names")
    rename: dict[str, str] = Field(
        default_factory=dict, description="patterns (Python's re), each with what replaces it in the names"
    )


class ModelPart(Part):
    """Where the model comes from: a factory, or a checkpoint. Only a model that is given as an object has neither."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["factory"]}, {"required": ["pretrained"]}]})

    factory: str | None = Field(
        default=None,
        pattern=r"^[^:]+:[A-Za-z_][A-Za-z0-9_.]*$",
        description="importable callable (package.module:callable) or path/to/file.py:callable; returns an nn.Module",
    )
    pretrained: FileName | None = Field(
        default=None,
        description="instead of a factory: a checkpoint's directory as the Hugging Face hub lays it out, or .gguf file",
    )
    task: str | None = Field(
        default=None,
        description="what a checkpoint is built for, as the hub names it: text-generation, feature-extraction; "
        "null: as its configuration says",
    )
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments for the factory, or options of the task"
    )
    weights: FileName | WeightsPart | None = Field(
        default=None, description=".safetensors file, or directory of them (sharded or not), to load over the factory's"
    )
    dtype: Literal["float16", "bfloat16", "float32", "float64"] | None = Field(
        default=None, description="floating-point parameters and buffers are cast to it; null leaves them"
    )
    share_equal_weights: bool = Field(
        default=False,
        description="store weights that are equal once, though the model does not tie them; other weights that are "
        "loaded later (load_weights) have to be equal then, too",
    )

    @property
    def checkpoint(self) -> WeightsPart | None:
        """`weights`, in its long form."""
        return WeightsPart(path=self.weights) if isinstance(self.weights, str) else self.weights

    @model_validator(mode="after")
    def _one_source(self) -> "ModelPart":
        if self.pretrained is not None and self.factory is not None:
            raise ValueError("a factory and a checkpoint are given: remove factory or pretrained")
        if self.task is not None and self.pretrained is None:
            raise ValueError("task says what a checkpoint is built for: add pretrained")
        return self


class InputPart(Part):
    """One tensor argument of the model."""

    shape: list[Size | Name] = Field(description="sizes, or names of dynamic dimensions")
    dtype: DType = Field(description="of the tensor, as torch names it")
    range: list[float | int | str] | None = Field(
        default=None,
        min_length=2,
        max_length=2,
        description="legal values: low inclusive, high exclusive; high may be a dimension: [0, nodes], [1, seq + 1]",
    )
    mask: Literal["left", "right", "any"] | None = Field(
        default=None,
        description="zeros and ones, with a one in each row at least: padded on the left or right, or anywhere",
    )
    pad: Fill | dict[Name, Fill] | None = Field(
        default=None,
        description="what fills the padded part: a number, or 'any' where its value does no harm; null: never padded; "
        "{batch: 0}: padded along these dimensions alone",
    )
    distinct: bool = Field(
        default=False, description="all values differ: rows of a cache, say, that a call writes into"
    )
    host: bool = Field(
        default=False,
        description="the model takes a list of ints, which kernels read on the host; replaced at each call",
    )
    mutated: bool = Field(default=False, description="the model writes into it; the caller's memory is used in place")

    @model_validator(mode="after")
    def _consistent(self) -> "InputPart":
        if self.dtype in INTEGERS and self.range is None and self.mask is None:
            raise ValueError("an integer input needs range: [low, high), the legal values that the build may use")
        self._check_range()
        if isinstance(self.pad, dict) and (not self.pad or len({repr(value) for value in self.pad.values()}) > 1):
            raise ValueError("pad: {dimension: value} needs one value, the same for all dimensions that it names")
        if isinstance(self.pad, dict) and (unknown := [dim for dim in self.pad if dim not in self.shape]):
            raise ValueError(f"pad names {unknown[0]}, which is no dynamic dimension of the shape")
        self._check_pad()
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
        if isinstance(low, str) or (isinstance(high, str) and (self.dtype == "bool" or not BOUND.fullmatch(high))):
            raise ValueError(f"range is [number, number], [number, dimension] or [number, dimension + 1]: {self.range}")
        if not isinstance(high, str) and not low < high:
            raise ValueError(f"range must be [low, high) with low < high, not {self.range}")
        if self.range is None:
            return
        if self.dtype in FLOATS:
            self._check_float_range(low, high)
            return
        least, most = _INTEGERS[self.dtype]
        if low < least or (not isinstance(high, str) and high > most + 1) or not all(map(_is_whole, self.range)):
            raise ValueError(f"{self.dtype} holds whole numbers from {least} to {most}: range is {self.range}")

    def _check_float_range(self, low: float | int, high: float | int | str) -> None:
        largest = torch.finfo(getattr(torch, self.dtype)).max
        if not all(isinstance(end, str) or abs(end) <= largest for end in (low, high)):
            raise ValueError(f"{self.dtype} holds finite numbers up to {largest:g}: range is {self.range}")

    def _check_pad(self) -> None:
        fill = self.fill
        if fill is None or isinstance(fill, str):
            return
        if self.dtype in FLOATS:
            held = not torch.finfo(getattr(torch, self.dtype)).max < abs(fill) < math.inf
        else:
            least, most = _INTEGERS[self.dtype]
            held = least <= fill <= most and _is_whole(fill)
        if not held:
            raise ValueError(f"pad is no value of {self.dtype}: {fill}")

    @property
    def fill(self) -> Fill | None:
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
        assert not isinstance(low, str), "refused by _check_range"
        return [low, bound_at(high, sizes) if isinstance(high, str) else high]

    def at(self, sizes: Mapping[str, int]) -> "InputPart":
        """The input with `range` in numbers and `pad` as one value."""
        return self.model_copy(update={"range": self.bounds(sizes), "pad": self.fill})

    def shape_at(self, sizes: Mapping[str, int]) -> list[int]:
        """`shape` where the dimensions have these sizes."""
        return [sizes[size] if isinstance(size, str) else size for size in self.shape]

    @property
    def ends(self) -> tuple[float | int, float | int]:
        """Both ends of `range`, of an input that has one in numbers (`at`)."""
        assert self.range is not None
        low, high = self.range
        assert not isinstance(low, str) and not isinstance(high, str)
        return low, high


def read_bound(text: str) -> tuple[str, int]:
    """The dimension that an end of a range names, and what is added to its size."""
    found = BOUND.fullmatch(text)
    assert found is not None, "refused by _check_range"
    dim, sign, more = found.groups()
    return dim, -int(more) if sign == "-" else int(more or 0)


def bound_at(text: str, sizes: Mapping[str, int]) -> int:
    dim, added = read_bound(text)
    return sizes[dim] + added


def _is_whole(value: float | str) -> bool:
    return isinstance(value, str) or value == int(value)


class DimensionPart(Part):
    """One dynamic dimension."""

    min: Size | None = Field(default=None, description="the smallest size of a call; null: found by trying the model")


class OutputPart(Part):
    """One tensor that the model returns."""

    clone: bool = Field(
        default=False, description="each call gives a tensor of its own, which no later call overwrites"
    )


class VerifyPart(Part):
    """How the build compares with the original model."""

    atol: float | None = Field(
        default=None,
        ge=0,
        description="an absolute bound; without both, one relative to the greatest number of each row, by dtype",
    )
    rtol: float | None = Field(default=None, ge=0, description="of each number, beside atol")
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="of the random inputs and states")
    samples: FileName | None = Field(
        default=None, description=".safetensors file of real inputs, named INPUT or SAMPLE.INPUT"
    )
    prompts: list[str] | None = Field(
        default=None,
        description="texts of which the tokenizer of model.pretrained makes inputs; null: two short ones, where it has "
        "a tokenizer",
    )
    level: Literal["full", "sampled"] = Field(
        default="full",
        description="sampled: each bucket called once, and the smallest and the largest of an entry point padded, with "
        "few poisons; for models whose full proof takes too long",
    )


Inputs = dict[InputName, InputPart]
Constants = dict[InputName, Annotated[Any, BeforeValidator(_plain)]]
Types = dict[InputName, Annotated[str, Field(pattern=r"^(dict|list|tuple|[^:]+:[A-Za-z_][A-Za-z0-9_.]*)$")]]
Outputs = dict[int | str, OutputPart]
Mesh = Annotated[dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,15}$")], Size], Field(max_length=8)]
_Meshes = Annotated[list[Mesh], Field(min_length=1, max_length=MOST_MESHES)]
MeshOrMeshes = Annotated[
    Annotated[Mesh, Tag("dict[mesh]")] | Annotated[_Meshes, Tag("list[mesh]")],
    Discriminator(lambda value: f"{'list' if isinstance(value, (list, tuple)) else 'dict'}[mesh]"),
]
Buckets = dict[Name, list[Size]] | list[dict[Name, Size]]


Dimensions = dict[Name, DimensionPart]


class EntryPart(Part):
    """One callable of the artifact."""

    method: Name = Field(default="forward", description="the model's method that it calls")
    inputs: Inputs = Field(default_factory=dict, description="as the recipe's, for this entry point")
    buckets: Buckets = Field(default_factory=dict, description="as the recipe's, for this entry point")
    outputs: Outputs = Field(default_factory=dict, description="as the recipe's, for this entry point")
    samples: FileName | None = Field(default=None, description="as verify.samples, for this entry point")
    constants: Constants = Field(default_factory=dict, description="as the recipe's, for this entry point")
    types: Types = Field(default_factory=dict, description="as the recipe's, for this entry point")
    dimensions: Dimensions = Field(default_factory=dict, description="as the recipe's, for this entry point")

    @field_validator("buckets")
    @classmethod
    def _some(cls, buckets: Buckets) -> Buckets:
        return _distinct(buckets)


def _distinct(buckets: Buckets) -> Buckets:
    if isinstance(buckets, dict):
        for name, sizes in buckets.items():
            if not sizes or len(set(sizes)) != len(sizes):
                raise ValueError(f"{name}: expected distinct sizes, got {sizes}")
    elif any(bucket in buckets[:number] for number, bucket in enumerate(buckets)):
        raise ValueError("expected distinct buckets, and one is there twice")
    return buckets


class Recipe(Part):
    """A model, its inputs and buckets, and how to build them.

    One entry point, `forward`, has its inputs and buckets here; several have theirs under `entry_points`. What the
    stages of a build see is made of it once: a `Job`.
    """

    name: str = Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", description="of the artifact; it is written to NAME.aotair by default"
    )
    model: ModelPart = Field(description="where the model and its weights come from")
    target: TargetPart = Field(default_factory=TargetPart, description="the device, and what it must have")
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
    files: list[str] = Field(
        default_factory=list,
        description="data files that travel with the artifact: a tokenizer, labels; a checkpoint's own are added",
    )
    fusion: list[Annotated[str, Field(pattern=r"^[^:]+:[A-Za-z_][A-Za-z0-9_.]*$")]] = Field(
        default_factory=list, description="functions (module:function) that register fusion rules for this build"
    )
    quantize: QuantizePart | None = Field(default=None, description="null: compute in the model's own dtypes")
    mesh: MeshOrMeshes = Field(
        default_factory=dict,
        description="ranks that run the artifact together, by axis: {tp: 4}, {dp: 2, tp: 2}; the last axis varies "
        "fastest from rank to rank; or a list of such, [{}, {tp: 4}], for one artifact with a program for each, over "
        "one set of weights",
    )
    parallel: Literal["auto", "model"] | dict[str, str] = Field(
        default="auto",
        description="how modules are shared out over the mesh: auto, as transformers' model says; model: by the "
        "factory, called as factory(mesh=MESH) for each rank, with mesh=None for the whole; or names of modules, "
        "with * and ?, to colwise, rowwise, vocabulary, gathered, rowwise_of_all, expert, expert_width, "
        "expert_dispatch, sequence, stages, replicate, of the axis tp (experts: ep, where there is one; "
        "expert_dispatch: dp; stages: pp) or STYLE@AXIS; or to auto, as transformers' model says of these modules",
    )
    verify: VerifyPart = Field(default_factory=VerifyPart, description="how the build proves the artifact")
    config: CompilerConfig = Field(default_factory=CompilerConfig, description="what is done to the graph")

    # Not fields: where the recipe was read from, for errors and relative paths; and whether a checkpoint's task has
    # added what the recipe leaves out.
    _file: Path | None = None
    _complete: bool = False

    @model_validator(mode="after")
    def _shared_out(self) -> "Recipe":
        if not any(self.meshes) and self.parallel != "auto":
            raise ValueError("parallel says how modules are shared out over ranks: add mesh, as mesh: {tp: 2}")
        if self.parallel == "model" and self.model.factory is None:
            raise ValueError("parallel: model is for a factory, which is called with a mesh: name it in model.factory")
        ranks = [math.prod(mesh.values()) for mesh in self.meshes]
        if max(ranks) > 1 << 16:
            raise ValueError("mesh: at most 65536 ranks")
        different = [[(axis, size) for axis, size in mesh.items() if size > 1] for mesh in self.meshes]
        if twice := [mesh for number, mesh in enumerate(different) if mesh in different[:number]]:
            said = ", ".join(f"{axis}: {size}" for axis, size in twice[0])
            raise ValueError(f"mesh: {{{said}}} is there twice" + ("" if said else ", as one rank: {} or {tp: 1}"))
        return self

    @model_validator(mode="after")
    def _served(self) -> "Recipe":
        if self.quantize is None:
            return self
        device, target = self.target.device, Target(self.target.device)
        asked = [("linear", scheme, target.quantized_linear) for scheme in self.quantize.linear_schemes]
        if self.quantize.experts is not None:
            asked.append(("experts", self.quantize.experts, target.quantized_experts))
        for part, scheme, has in asked:
            if scheme not in has:
                raise ValueError(
                    f"quantize.{part}: {device} has no kernel for {scheme}; it has {', '.join(has) or 'none'}"
                )
        return self

    @field_validator("buckets")
    @classmethod
    def _some(cls, buckets: Buckets) -> Buckets:
        return _distinct(buckets)

    @property
    def meshes(self) -> list[dict[str, int]]:
        """The meshes that it is for, of which there is one or are several."""
        return self.mesh if isinstance(self.mesh, list) else [self.mesh]

    @property
    def where(self) -> str:
        """What errors call the recipe."""
        return str(self._file) if self._file else f"recipe {self.name!r}"

    @property
    def folder(self) -> Path:
        """What relative paths in the recipe are relative to."""
        return self._file.parent if self._file else Path.cwd()

    @property
    def complete(self) -> bool:
        """Whether nothing of it is left to the task of a checkpoint."""
        return self._complete or self.model.pretrained is None

    def read_from(self, file: Path | None, *, complete: bool = False) -> "Recipe":
        """The same recipe, read from that file."""
        changed = self.model_copy()
        changed._file, changed._complete = file, complete
        return changed
