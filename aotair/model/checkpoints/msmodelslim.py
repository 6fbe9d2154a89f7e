"""Checkpoints of msModelSlim, for Ascend's tools: `quant_model_description.json` names the kind of each tensor.

All weights are `weight` (out, in) int8, with `weight_scale` and `weight_offset` (out, 1) or (out, in / group_size); the
offset is 0 but for W8A16. W8A8: activations have `input_scale` and `input_offset`; `deq_scale` (out,) times the product
plus `quant_bias` (out,) is the result; `deq_scale` is float32, or its bits in int64. W8A8_DYNAMIC: each token brings
its scale. W8A16: activations are not quantised. W4A8_DYNAMIC: 4 bits in each int8, or two rows of them, the even one
lower; `weight_scale_second` (out, in / group_size) multiplies `weight_scale`, `scale_bias` is for one kernel alone.
Source: msModelSlim's `modelslim_v1/save/ascendv1.py` and `ir`, and vllm-ascend's `quantization/methods`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aotair_runtime.artifact.quantisation import DESCRIPTION

from ...target.target import Target
from ..quantized_linear import QuantizedWeight, int8_sums
from .activations import Activations, Fixed, fixed_numbers, int8_product, product
from .fields import Fields, read_fields
from .folder import Folder
from .layer import FLOATS, Layer, Wanted
from .unpack import halves, where_all

_PLAIN = "FLOAT"
_KINDS = ("W8A8", "W8A8_DYNAMIC", "W8A16", "W4A8_DYNAMIC")
_LARGEST = 1 << 20
_GROUP = 256  # of the second scales, where the description says nothing
_HALVES = (torch.float16, torch.bfloat16)
_BY_TOKEN = Activations(floating=False, dynamic=True)


@dataclass(frozen=True)
class _Static:
    """W8A8: activations have one scale and one offset."""

    def product(self, x: Tensor, stored: Mapping[str, Tensor], bias: Tensor | None, target: Target) -> Tensor:
        fixed = Fixed(stored["input_scale"], stored["input_offset"])
        scale, rows = _bits_as_float(stored["deq_scale"]), stored["weight"]
        if (offset := stored.get("weight_offset")) is not None:
            scale = where_all(offset == 0, scale)
        if target.kind == "npu" and x.dtype in _HALVES:
            return int8_product(x, fixed, rows, scale, stored["quant_bias"])
        tokens = fixed_numbers(x, fixed)  # quant_bias takes away what their offset adds, and holds the layer's bias
        sums = int8_sums(tokens.to(torch.int8).view(-1, x.shape[-1]), rows, target) + stored["quant_bias"]
        return (sums * scale).to(x.dtype).view(*x.shape[:-1], rows.shape[0])

    def fault(self, stored: Mapping[str, Tensor]) -> str:
        return _offset_fault(stored)


@dataclass(frozen=True)
class _Scaled:
    """Weights with a scale for each row or group. `offset`: whether there may be one. `paired`: whether two rows lie in
    one of int8."""

    bits: int
    activations: Activations | None
    offset: bool = False
    paired: bool = False

    def product(self, x: Tensor, stored: Mapping[str, Tensor], bias: Tensor | None, target: Target) -> Tensor:
        scale, zero = stored["weight_scale"].float(), stored["weight_offset"]
        if (second := stored.get("weight_scale_second")) is not None:
            scale = scale * second.float()
        if not self.offset:
            scale = where_all(zero == 0, scale)
        weight = QuantizedWeight(self._rows(stored), scale, zero if self.offset else None, self.bits)
        return product(x, weight, bias, self.activations, None, target)

    def _rows(self, stored: Mapping[str, Tensor]) -> Tensor:
        rows = stored["weight"]
        return halves(rows.t()).t().contiguous() if self.paired else rows

    def fault(self, stored: Mapping[str, Tensor]) -> str:
        half, rows = 2 ** (self.bits - 1), self._rows(stored)
        if not -half <= int(rows.min()) <= int(rows.max()) < half:
            return f"weight holds numbers of more than {self.bits} bits"
        return "" if self.offset else _offset_fault(stored)


@dataclass(frozen=True)
class MsModelSlim:
    """A checkpoint of msModelSlim."""

    folder: Folder
    description: Fields
    target: Target
    unused: Sequence[str] = ()

    @property
    def modules(self) -> Sequence[str]:
        end = ".weight"
        return [
            name.removesuffix(end)
            for name, kind in self.description.values.items()
            if name.endswith(end) and kind != _PLAIN and self.folder.dtype(name) is not None
        ]

    def layer(self, name: str, width: int, depth: int) -> Layer:
        kind = self.description.one_of(f"{name}.weight", (*_KINDS, _PLAIN))
        if kind == "W8A8":
            return self._static(name, width, depth)
        scales = self._scales(name, width, depth)
        tensors = {
            "weight": Wanted((torch.int8,), ((width, depth),)),
            "weight_scale": Wanted(FLOATS, scales),
            "weight_offset": Wanted((*FLOATS, torch.int8), scales),
        }
        if kind == "W4A8_DYNAMIC":
            return self._four_bits(name, tensors, width, depth)
        if kind == "W8A16":
            return Layer(_Scaled(8, None, offset=True), tensors)
        return Layer(_Scaled(8, _BY_TOKEN), tensors)

    def _static(self, name: str, width: int, depth: int) -> Layer:
        tensors = {
            "weight": Wanted((torch.int8,), ((width, depth),)),
            "input_scale": Wanted(FLOATS, ((1,),)),
            "input_offset": Wanted((torch.int8, *FLOATS), ((1,),)),
            "quant_bias": Wanted((torch.int32,), ((width,),)),
            "deq_scale": Wanted((torch.float32, torch.int64), ((width,),)),
        }
        column = Wanted((*FLOATS, torch.int8), ((width, 1),))
        tensors |= {part: column for part in ("weight_scale", "weight_offset") if self._has(name, part)}
        return Layer(_Static(), tensors, adds_bias=False)

    def _four_bits(self, name: str, tensors: dict[str, Wanted], width: int, depth: int) -> Layer:
        paired = self.folder.shape(f"{name}.weight") == (width // 2, depth) and width % 2 == 0
        if paired:
            tensors["weight"] = Wanted((torch.int8,), ((width // 2, depth),))
        if self._has(name, "weight_scale_second"):
            size = self.description.number("group_size", 0, _LARGEST, 0) or _GROUP
            groups = ((width, depth // size),)
            tensors["weight_scale_second"] = Wanted(FLOATS, groups)
            tensors["weight_offset_second"] = Wanted((*FLOATS, torch.int8), groups)
        if self._has(name, "scale_bias"):
            columns = self.folder.shape(f"{name}.scale_bias")[1:2]
            tensors["scale_bias"] = Wanted(FLOATS, ((width, *(columns or (1,))),))
        return Layer(_Scaled(4, _BY_TOKEN, paired=paired), tensors)

    def _scales(self, name: str, width: int, depth: int) -> tuple[tuple[int, int], ...]:
        """The shapes that scales may have: of rows, and of groups where the description names their size."""
        size = self.description.number("group_size", 0, _LARGEST, 0)
        if size and depth % size:
            raise self.folder.refused(name, f"its {depth} inputs do not go into groups of {size}")
        return ((width, 1), (width, depth // size)) if size else ((width, 1),)

    def _has(self, name: str, part: str) -> bool:
        return self.folder.dtype(f"{name}.{part}") is not None


def read(folder: Folder, target: Target) -> MsModelSlim | None:
    """What a folder that msModelSlim wrote says of its layers; None for another. Raises ModelError."""
    files = sorted(folder.path.glob(DESCRIPTION)) if folder.path.is_dir() else []
    return MsModelSlim(folder, read_fields(files[0]), target) if files else None


def _bits_as_float(scale: Tensor) -> Tensor:
    """float32 (out,), of float32 or of its bits in the lower half of int64."""
    return scale if scale.dtype == torch.float32 else scale.to(torch.int32).view(torch.float32)


def _offset_fault(stored: Mapping[str, Tensor]) -> str:
    offsets = ("weight_offset", "weight_offset_second")
    wrong = [name for name in offsets if name in stored and bool((stored[name] != 0).any())]
    return f"{wrong[0]} is not 0, and only weights that are symmetric are served" if wrong else ""
