"""Checkpoints of torchao in safetensors: the headers of the files say what each tensor was.

A weight `W.weight` of a class of torchao's lies as `W._weight_qdata`, `W._weight_scale`, … Source: torchao's
`prototype/safetensors`, and its classes `Int8Tensor`, `IntxUnpackedToInt8Tensor`, `Int4Tensor`, `Float8Tensor`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aotair_runtime.artifact.checkpoint import some

from ...errors import ModelError
from ...target.target import Target
from ..quantized_linear import QuantizedWeight
from .activations import Activations, Fixed, float8_product, product, rounded
from .fields import Fields
from .folder import Folder
from .layer import FLOATS, Layer, Wanted
from .unpack import halves, where_all

_NAMES, _PLAIN = "tensor_names", "Tensor"
_QDATA, _SCALE, _ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"
_FIXED_SCALE, _FIXED_ZERO = "_weight_act_quant_scale", "_weight_act_quant_zero_point"
_CLASSES = ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Int4Tensor", "Float8Tensor")
_INT8, _INT4, _FLOAT8, _UNPACKED = "Int8Tensor", "Int4Tensor", "Float8Tensor", "IntxUnpackedToInt8Tensor"


@dataclass(frozen=True)
class _Tensors:
    """What a weight of torchao computes. `kind` is its class."""

    kind: str
    bits: int
    activations: Activations | None

    def product(self, x: Tensor, stored: Mapping[str, Tensor], bias: Tensor | None, target: Target) -> Tensor:
        data, scale, zero = stored[_QDATA], stored[_SCALE], stored.get(_ZERO)
        scale_of_input = stored.get(_FIXED_SCALE)
        fixed = None
        if scale_of_input is not None:
            at = stored.get(_FIXED_ZERO)
            fixed = Fixed(scale_of_input.view(1), None if at is None else at.view(1))
        if self.kind == _FLOAT8:
            x = x if self.activations is None else rounded(x, self.activations, fixed)
            return float8_product(x, data, scale, bias)
        if self.kind == _INT4:
            # Its zero is what a 0 stands for: rows * scale + zero.
            wide, least = scale.t().float(), stored[_ZERO].t().float()
            weight = QuantizedWeight(halves(data), wide, -least / torch.where(wide == 0, 1.0, wide), 4)
        else:
            scale = scale.expand(data.shape[0], scale.shape[1])
            if zero is not None and self._symmetric(scale):
                scale, zero = where_all(zero == 0, scale), None
            zero = None if zero is None else zero.expand(scale.shape)
            weight = QuantizedWeight(data, scale, zero, self.bits)
        return product(x, weight, bias, self.activations, fixed, target)

    def fault(self, stored: Mapping[str, Tensor]) -> str:
        data, half = stored[_QDATA], 2 ** (self.bits - 1)
        if self.kind == _UNPACKED and not -half <= int(data.min()) <= int(data.max()) < half:
            return f"{_QDATA} holds numbers of more than {self.bits} bits"
        zero = stored.get(_ZERO)
        if zero is not None and self._symmetric(stored[_SCALE]) and bool((zero != 0).any()):
            return f"{_ZERO} is not 0, and torchao leaves it out of products of rows with one scale"
        return ""

    def _symmetric(self, scale: Tensor) -> bool:
        """Whether zero points are zeros: torchao writes them of all its int8, and uses them in groups alone."""
        return self.kind == _INT8 and scale.shape[1] == 1


@dataclass(frozen=True)
class TorchAo:
    """A checkpoint of torchao; `weights` are the descriptions of those that are of its classes, by name."""

    folder: Folder
    weights: Mapping[str, Fields]
    target: Target
    unused: Sequence[str] = ()

    @property
    def modules(self) -> Sequence[str]:
        return [name.rpartition(".")[0] for name in self.weights]

    def layer(self, name: str, width: int, depth: int) -> Layer:
        described = self.weights.get(f"{name}.weight")
        if described is None:
            raise self.folder.refused(name, "another of its tensors than the weight is quantised")
        kind = described.one_of("_type", _CLASSES)
        data = described.part("_data")
        assert isinstance(kind, str)
        if data is None:
            raise described.refused("_data", "what the tensor's class needs")
        if kind == _INT4:
            return self._int4(name, data, width, depth)
        down, across = _block(data, width, depth)
        scale = ((width // down, depth // across),)
        number = torch.float8_e4m3fn if kind == _FLOAT8 else torch.int8
        tensors = {_QDATA: Wanted((number,), ((width, depth),)), _SCALE: Wanted(FLOATS, scale)}
        if self.folder.dtype(f"{name}.{_ZERO}") is not None and kind != _FLOAT8:
            tensors[_ZERO] = Wanted((torch.int8, *FLOATS), scale)
        bits = _bits(data) if kind == _UNPACKED else 8
        fixed = self.folder.dtype(f"{name}.{_FIXED_SCALE}") is not None
        activations = _activations(data, kind, fixed, self.target)
        if fixed and activations is not None:
            tensors[_FIXED_SCALE] = Wanted(FLOATS, ((1, 1), (1,), ()))
            if self.folder.dtype(f"{name}.{_FIXED_ZERO}") is not None:
                tensors[_FIXED_ZERO] = Wanted((torch.int8,), ((1, 1), (1,), ()))
        return Layer(_Tensors(kind, bits, activations), tensors)

    def _int4(self, name: str, data: Fields, width: int, depth: int) -> Layer:
        down, across = _block(data, width, depth)
        if down != 1 or depth % 2:
            raise data.refused("block_size", "groups along an even number of inputs")
        activation = data.values.get("activation_dtype")
        if activation not in (None, {"_type": "torch.dtype", "_data": "bfloat16"}):
            raise data.refused("activation_dtype", "bfloat16")
        lying = Wanted(FLOATS, ((depth // across, width),))
        tensors = {_QDATA: Wanted((torch.int8,), ((width, depth // 2),)), _SCALE: lying, _ZERO: lying}
        return Layer(_Tensors(_INT4, 4, None), tensors)


def read(folder: Folder, target: Target) -> TorchAo | None:
    """What the headers of torchao's files say of its layers; None where they are another's. Raises ModelError."""
    if _NAMES not in folder.headers:
        return None
    found = {}
    for name in _listed(folder):
        described = _described(folder, name)
        if described.values.get("_type") != _PLAIN:
            found[name] = described
    return TorchAo(folder, found, target)


def _listed(folder: Folder) -> list[str]:
    """The names that the headers list."""
    names = [name for name in folder.headers if name not in (_NAMES, "format")]
    unknown = [name for name in names if "." not in name]
    if unknown:
        raise ModelError(
            "model.weights: torchao's headers describe tensors of no module",
            where=str(folder.path),
            got=some(unknown),
        )
    return names


def _described(folder: Folder, name: str) -> Fields:
    try:
        found = json.loads(folder.headers[name])
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"model.weights: what torchao's header says of {name} cannot be read as JSON: {error}",
            where=str(folder.path),
        ) from error
    if not isinstance(found, dict):
        raise ModelError(f"model.weights: torchao's header says nothing of {name}", where=str(folder.path))
    return Fields(folder.path, name, found)


def _block(data: Fields, width: int, depth: int) -> tuple[int, int]:
    """How many rows and inputs have a scale together."""
    value = data.values.get("block_size")
    if isinstance(value, list) and len(value) == 2 and all(type(n) is int and n > 0 for n in value):
        down, across = (min(n, most) for n, most in zip(value, (width, depth)))
        if down in (1, width) and depth % across == 0:
            return down, across
    raise data.refused("block_size", f"[1 or {width}, a part of {depth}]")


def _bits(data: Fields) -> int:
    kind = data.part("target_dtype")
    if kind is None:
        raise data.refused("target_dtype", "a dtype")
    return 4 if kind.one_of("_data", ("int4", "int8")) == "int4" else 8


def _activations(data: Fields, kind: str, fixed: bool, target: Target) -> Activations | None:
    """How the activations of a weight are quantised; None where they are not."""
    data.refuse_unless_empty("act_pre_scale")
    if kind == _UNPACKED:
        asked = data.one_of("activation_quantization", (None, "int8_asym_per_token"))
        return None if asked is None else Activations(floating=False, dynamic=True, symmetric=False)
    options = data.part("act_quant_kwargs")
    if options is None:
        return None
    floating = kind == _FLOAT8
    if floating and target.kind == "npu":
        raise data.refused("act_quant_kwargs", "nothing: an NPU has no float8")
    inner = options.part("_data")
    granularity = None if inner is None else inner.part("granularity")
    if inner is None or granularity is None:
        raise options.refused("_data", "a granularity")
    granularity.one_of("_type", ("PerTensor",) if fixed else ("PerRow",))
    symmetric = True
    if (mapping := inner.part("mapping_type")) is not None:
        symmetric = mapping.one_of("_data", ("SYMMETRIC", "ASYMMETRIC")) == "SYMMETRIC"
    inner.refuse_unless_empty("hp_value_lb", "hp_value_ub")
    bits = 7 if inner.flag("reduce_range", False) else 8  # what a processor without VNNI sums without overflow
    return Activations(floating, not fixed, symmetric, bits)
