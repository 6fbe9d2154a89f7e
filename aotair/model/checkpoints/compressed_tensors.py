"""Checkpoints of compressed-tensors, as llm-compressor writes them: int of 4 and 8 bits, packed or not, and float8.

Packed weights are `weight_packed` (out, in * bits / 32) in words of 32 bits, the first number lowest, each more by
2**(bits - 1), with `weight_shape`; others are `weight` (out, in) int8 or float8_e4m3fn. `weight_scale` is that of all,
of each row, each group or each block; `weight_zero_point` lies like it, packed along rows. The weight is
`(q - zero) * scale`. Static activations have `input_scale`, and `input_zero_point`. Source: compressed-tensors'
compressors `pack_quantized` and `naive_quantized`, `dequantize` and `compute_dynamic_scales_and_zp`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...target.target import Target
from ..quantized_linear import QuantizedWeight
from .activations import Activations, Fixed, float8_product, product, rounded
from .fields import Fields
from .folder import Folder
from .layer import FLOATS, Layer, Wanted
from .names import Names, names_of
from .unpack import by_groups, neighbours, order_fault, unpacked, where_all

_LARGEST = 1 << 20  # of a group
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_STATES = ("compressed", "frozen")  # the second is what early versions wrote of weights that they had compressed
_CACHES = ("k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point", "q_zero_point")
_INT_STRATEGIES = ("tensor", "channel", "group")
_ORDERS = (None, "weight", "static", "group", "dynamic", False)


@dataclass(frozen=True)
class _Weights:
    """How weights are quantised: `group` inputs have a scale, or `block` rows and inputs, or each row, or `whole`."""

    floating: bool
    bits: int
    symmetric: bool
    whole: bool
    group: int | None
    block: tuple[int, int] | None


@dataclass(frozen=True)
class _Integers:
    """Whole numbers, `packed` or not. `sorts`: whether inputs are sorted by their groups first."""

    weights: _Weights
    activations: Activations | None
    packed: bool
    sorts: bool

    def product(self, x: Tensor, stored: Mapping[str, Tensor], bias: Tensor | None, target: Target) -> Tensor:
        scale, fixed = stored["weight_scale"], _fixed(stored)
        rows = unpacked(stored["weight_packed"], self.weights.bits) if self.packed else stored["weight"]
        depth = x.shape[-1]
        rows = rows[:, :depth] if rows.shape[1] != depth else rows
        scale = scale.reshape(-1, 1) if scale.dim() < 2 else scale
        scale = scale.expand(rows.shape[0], scale.shape[1])
        zero = self._zero(stored.get("weight_zero_point"), scale)
        if self.weights.symmetric and (none := stored.get("weight_zero_point")) is not None:
            scale = where_all(none == 0, scale)
        x, rows, scale = by_groups(x, rows, scale, stored.get("weight_g_idx"), self.sorts)
        weight = QuantizedWeight(rows, scale, zero, self.weights.bits)
        return product(x, weight, bias, self.activations, fixed, target)

    def _zero(self, stored: Tensor | None, scale: Tensor) -> Tensor | None:
        if stored is None or self.weights.symmetric:
            return None
        if stored.dtype == torch.int32:
            return unpacked(stored.t(), self.weights.bits)[:, : scale.shape[0]].t().contiguous()
        return (stored.reshape(-1, 1) if stored.dim() < 2 else stored).expand(scale.shape)

    def fault(self, stored: Mapping[str, Tensor]) -> str:
        shape = stored.get("weight_shape")
        packed = stored.get("weight_packed")
        if shape is not None and packed is not None:
            per = 32 // self.weights.bits
            rows, depth = (int(n) for n in shape)
            if rows != packed.shape[0] or -(-depth // per) != packed.shape[1]:
                return f"weight_shape says {[rows, depth]}, which is not what weight_packed holds"
        zero = stored.get("weight_zero_point")
        if self.weights.symmetric and zero is not None and bool((zero != 0).any()):
            return "weight_zero_point is not 0, and the configuration says that the weights are symmetric"
        groups_of = stored.get("weight_g_idx")
        return "" if groups_of is None else order_fault("weight_g_idx", groups_of, stored["weight_scale"].shape[1])


@dataclass(frozen=True)
class _Floats:
    """Weights in float8_e4m3fn."""

    weights: _Weights
    activations: Activations | None

    def product(self, x: Tensor, stored: Mapping[str, Tensor], bias: Tensor | None, target: Target) -> Tensor:
        weight, scale = stored["weight"], stored["weight_scale"]
        if self.activations is not None:
            x = rounded(x, self.activations, _fixed(stored))
        if self.weights.block is not None:
            down, across = self.weights.block
            scale = scale.repeat_interleave(down, 0)[: weight.shape[0]]
            scale = scale.repeat_interleave(across, 1)[:, : weight.shape[1]]
        elif self.weights.group is not None:
            scale = scale.repeat_interleave(self.weights.group, 1)
        return float8_product(x, weight, scale, bias)

    def fault(self, stored: Mapping[str, Tensor]) -> str:
        return ""


@dataclass(frozen=True)
class _Group:
    """One of `config_groups`: what it says, and of which modules."""

    targets: Names
    fields: Fields
    packed: bool


@dataclass(frozen=True)
class CompressedTensors:
    """A checkpoint of compressed-tensors."""

    folder: Folder
    groups: tuple[_Group, ...]
    ignored: Names
    target: Target

    @property
    def modules(self) -> Sequence[str]:
        whole = self.folder.modules_with("weight", torch.int8, torch.float8_e4m3fn)
        return (*self.folder.modules_with("weight_packed"), *whole)

    @property
    def unused(self) -> Sequence[str]:
        return [name for name in self.folder.checkpoint.tensors if name.rpartition(".")[2] in _CACHES]

    def layer(self, name: str, width: int, depth: int) -> Layer:
        group = self._group(name)
        weights = _weights(group.fields)
        activations = _activations(group.fields, self.target)
        tensors = _tensors_of_weight(weights, group.packed, width, depth)
        if tensors is None:
            raise self.folder.refused(
                name, f"its weight of {width} by {depth} does not go into groups of {weights.group}"
            )
        if activations is not None and activations.group is not None and depth % activations.group:
            raise self.folder.refused(name, f"its {depth} inputs do not go into groups of {activations.group}")
        if activations is not None and not activations.dynamic:
            tensors["input_scale"] = Wanted(FLOATS, ((1,), ()))
            if not activations.symmetric or self.folder.dtype(f"{name}.input_zero_point") is not None:
                tensors["input_zero_point"] = Wanted((torch.int8,), ((1,), ()))
        early = not group.packed and self.folder.dtype(f"{name}.weight_zero_point") == torch.int8  # zeros, throughout
        if not weights.symmetric or early:
            tensors |= _zeros(weights, group.packed, width, tensors["weight_scale"])
        if weights.floating:
            return Layer(_Floats(weights, activations), tensors)
        sorts = False
        if self.folder.dtype(f"{name}.weight_g_idx") is not None:
            tensors["weight_g_idx"] = Wanted((torch.int32,), ((depth,),))
            sorts = self._sorts(name, depth, tensors["weight_scale"].shapes[0])
        return Layer(_Integers(weights, activations, group.packed, sorts), tensors)

    def _group(self, name: str) -> _Group:
        """The group that means a module most closely."""
        if self.ignored.has(name, "Linear"):
            raise self.folder.refused(name, "the configuration ignores it, and the checkpoint has it quantised")
        found = [
            (rank, n) for n, one in enumerate(self.groups) if (rank := one.targets.rank(name, "Linear")) is not None
        ]
        if not found:
            raise self.folder.refused(
                name, "no group of the configuration means it, and the checkpoint has it quantised"
            )
        return self.groups[min(found)[1]]

    def _sorts(self, name: str, depth: int, scale: tuple[int, ...]) -> bool:
        stored = f"{name}.weight_g_idx"
        if self.folder.dtype(stored) != torch.int32 or self.folder.shape(stored) != (depth,) or len(scale) != 2:
            return False  # refused for that
        groups_of = self.folder.checkpoint.tensor(stored)
        return not bool((groups_of == neighbours(groups_of, scale[1])).all())


def read(folder: Folder, fields: Fields, target: Target) -> CompressedTensors:
    """What a folder whose configuration names compressed-tensors says of its layers. Raises ModelError."""
    fields.refuse_unless_empty("transform_config")
    fields.one_of("quantization_status", _STATES, "compressed")
    sparsity = fields.part("sparsity_config")
    if sparsity is not None and sparsity.values:
        sparsity.one_of("format", ("dense",))
    written = fields.one_of("format", (*_FORMATS, "mixed-precision"))
    groups = []
    for one in fields.parts("config_groups"):
        own = one.values.get("format")
        if written == "mixed-precision" or own is not None:
            own = one.one_of("format", _FORMATS)
        groups.append(_Group(names_of(one, "targets"), one, (own or written) == "pack-quantized"))
    return CompressedTensors(folder, tuple(groups), names_of(fields, "ignore"), target)


def _weights(group: Fields) -> _Weights:
    group.refuse_unless_empty("output_activations")
    fields = group.part("weights")
    if fields is None:
        raise group.refused("weights", "what the weights are quantised to")
    fields.one_of("dynamic", (False,), False)
    if fields.values.get("actorder") not in _ORDERS:
        raise fields.refused("actorder", " or ".join(map(repr, _ORDERS)))
    floating = fields.one_of("type", ("int", "float"), "int") == "float"
    bits = fields.number("num_bits", 1, 64)
    if bits not in ((8,) if floating else (4, 8)):
        raise fields.refused("num_bits", "8" if floating else "4 or 8")
    if floating:
        fields.one_of("symmetric", (True,), True)
    strategy = fields.one_of("strategy", ("tensor", "channel", "group", "block") if floating else _INT_STRATEGIES)
    return _Weights(
        floating,
        bits,
        fields.flag("symmetric", True),
        strategy == "tensor",
        fields.number("group_size", 1, _LARGEST) if strategy == "group" else None,
        _block(fields) if strategy == "block" else None,
    )


def _block(fields: Fields) -> tuple[int, int]:
    value = fields.values.get("block_structure")
    if isinstance(value, list) and len(value) == 2 and all(type(n) is int and 0 < n <= _LARGEST for n in value):
        return value[0], value[1]
    raise fields.refused("block_structure", "two whole numbers, rows and inputs")


def _activations(group: Fields, target: Target) -> Activations | None:
    fields = group.part("input_activations")
    if fields is None:
        return None
    floating = fields.one_of("type", ("int", "float"), "int") == "float"
    if floating and target.kind == "npu":
        raise fields.refused("type", '"int": an NPU has no float8', "quantise the weights alone, or take int8")
    bits = fields.number("num_bits", 1, 64)
    if bits not in ((8,) if floating else (4, 8)):
        raise fields.refused("num_bits", "8" if floating else "4 or 8")
    dynamic = fields.flag("dynamic", False)
    # A scale of all tokens together would follow from what pads a call.
    strategy = fields.one_of("strategy", ("token", "group") if dynamic else ("tensor",))
    size = fields.number("group_size", 1, _LARGEST) if strategy == "group" else None
    return Activations(floating, dynamic, fields.flag("symmetric", True), bits, size)


def _tensors_of_weight(weights: _Weights, packed: bool, width: int, depth: int) -> dict[str, Wanted] | None:
    """The tensors of a weight with its scales; None where it does not go into their groups."""
    if weights.whole:
        scales: tuple[tuple[int, ...], ...] = ((1,), (), (1, 1))
    elif weights.block is not None:
        scales = ((-(-width // weights.block[0]), -(-depth // weights.block[1])),)
    elif weights.group is None:
        scales = ((width, 1),)
    elif depth % weights.group:
        return None
    else:
        scales = ((width, depth // weights.group),)
    tensors = {"weight_scale": Wanted(FLOATS, scales)}
    if packed:
        words = -(-depth * weights.bits // 32)
        tensors["weight_packed"] = Wanted((torch.int32,), ((width, words),))
        tensors["weight_shape"] = Wanted((torch.int64, torch.int32), ((2,),))
    else:
        tensors["weight"] = Wanted((torch.float8_e4m3fn if weights.floating else torch.int8,), ((width, depth),))
    return tensors


def _zeros(weights: _Weights, packed: bool, width: int, scale: Wanted) -> dict[str, Wanted]:
    """The zero points, which lie like the scales; those of packed weights are packed along rows, unless one is that of
    all."""
    if not packed or weights.whole:
        return {"weight_zero_point": Wanted((torch.int8,), scale.shapes)}
    words = -(-width * weights.bits // 32)
    return {"weight_zero_point": Wanted((torch.int32,), ((words, scale.shapes[0][1]),))}


def _fixed(stored: Mapping[str, Tensor]) -> Fixed | None:
    scale = stored.get("input_scale")
    return None if scale is None else Fixed(scale, stored.get("input_zero_point"))
