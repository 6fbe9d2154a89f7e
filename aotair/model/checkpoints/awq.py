"""Checkpoints of AWQ, packed for its product of matrices: numbers of 4 bits along a weight's outputs.

`qweight` (in, out / 8) and `qzeros` (groups, out / 8) hold eight numbers in a word of 32 bits, in the order 0 2 4 6 1 3
5 7; `scales` are (groups, out). The weight is `(q - zero) * scale`. Source: AutoAWQ's `WQLinear_GEMM` and its
`unpack_awq`, `reverse_awq_order`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...target.target import Target
from ..quantized_linear import QuantizedWeight, weight_only
from .fields import Fields
from .folder import Folder
from .layer import FLOATS, Layer, Wanted
from .unpack import unpacked

_LARGEST = 1 << 20  # of a group
_BITS, _PER_WORD = 4, 8


@dataclass(frozen=True)
class _Packed:
    def product(self, x: Tensor, stored: Mapping[str, Tensor], bias: Tensor | None, target: Target) -> Tensor:
        rows, zero = (
            unpacked(stored[name], _BITS, interleaved=True).t().contiguous() for name in ("qweight", "qzeros")
        )
        return weight_only(x, QuantizedWeight(rows, stored["scales"].t(), zero, _BITS), bias, target)

    def fault(self, stored: Mapping[str, Tensor]) -> str:
        return ""


@dataclass(frozen=True)
class Awq:
    """A checkpoint of AWQ, with groups of `size` inputs, -1 for all."""

    folder: Folder
    size: int
    unused: Sequence[str] = ()

    @property
    def modules(self) -> Sequence[str]:
        return self.folder.modules_with("qweight")

    def layer(self, name: str, width: int, depth: int) -> Layer:
        size = depth if self.size == -1 else self.size
        if size < 1 or depth % size or width % _PER_WORD:
            raise self.folder.refused(
                name, f"its weight of {width} by {depth} does not go into groups of {size} and words of {_PER_WORD}"
            )
        tensors = {
            "qweight": Wanted((torch.int32,), ((depth, width // _PER_WORD),)),
            "qzeros": Wanted((torch.int32,), ((depth // size, width // _PER_WORD),)),
            "scales": Wanted(FLOATS, ((depth // size, width),)),
        }
        return Layer(_Packed(), tensors)


def read(folder: Folder, fields: Fields) -> Awq:
    """What a folder whose configuration names AWQ says of its layers. Raises ModelError."""
    names = ("version", "checkpoint_format", "format")
    for field in names:
        value = fields.values.get(field)
        if value is not None and (not isinstance(value, str) or value.lower() != "gemm"):
            raise fields.refused(field, '"gemm"', "quantise it again with that, or convert it")
    if fields.number("bits", 1, 32, _BITS) != _BITS:
        raise fields.refused("bits", "4")
    fields.one_of("zero_point", (True,), True)
    fields.refuse_unless_empty("dynamic")
    return Awq(folder, fields.number("group_size", -1, _LARGEST))
