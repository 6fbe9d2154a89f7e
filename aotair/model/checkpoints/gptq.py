"""Checkpoints of GPTQ: numbers of 4 or 8 bits, packed along a weight's inputs, with a scale and a zero for each group.

`qweight` (in * bits / 32, out) and `qzeros` (groups, out * bits / 32) hold words of 32 bits, the first number lowest;
`scales` are (groups, out), `g_idx` (in,) names the group of each input. The weight is `(q - zero) * scale`. The first
version of the format stores each zero less one. Source: GPTQModel's and AutoGPTQ's code that packs and unpacks them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...target.target import Target
from ..quantized_linear import QuantizedWeight, weight_only
from .fields import Fields
from .folder import Folder
from .layer import FLOATS, Layer, Wanted
from .unpack import by_groups, neighbours, order_fault, unpacked

_LARGEST = 1 << 20  # of a group
_WORD = 32


@dataclass(frozen=True)
class _Packed:
    """`less_one`: whether each zero is stored less one. `ordered`: whether groups are neighbours."""

    bits: int
    less_one: bool
    ordered: bool

    def product(self, x: Tensor, stored: Mapping[str, Tensor], bias: Tensor | None, target: Target) -> Tensor:
        rows, scale = unpacked(stored["qweight"].t(), self.bits), stored["scales"].t()
        x, rows, scale = by_groups(x, rows, scale, stored.get("g_idx"), not self.ordered)
        return weight_only(x, QuantizedWeight(rows, scale, self._zero(stored["qzeros"]), self.bits), bias, target)

    def _zero(self, words: Tensor) -> Tensor:
        """(out, groups) int8, less what rows are less. A zero of 0 is stored as the largest number where it is stored
        less one."""
        zero = unpacked(words, self.bits).t().contiguous()
        if not self.less_one:
            return zero
        least, most = -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        return torch.where(zero == most, torch.full_like(zero, least), zero + 1)

    def fault(self, stored: Mapping[str, Tensor]) -> str:
        groups_of = stored.get("g_idx")
        return "" if groups_of is None else order_fault("g_idx", groups_of, stored["scales"].shape[0])


@dataclass(frozen=True)
class _Rule:
    """What a part of the configuration says of modules; `pattern` is None where it says so of all."""

    pattern: re.Pattern[str] | None
    fields: Fields
    skips: bool = False


@dataclass(frozen=True)
class Gptq:
    """A checkpoint of GPTQ."""

    folder: Folder
    fields: Fields
    less_one: bool
    overrides: tuple[_Rule, ...]
    unused: Sequence[str] = ()

    @property
    def modules(self) -> Sequence[str]:
        return self.folder.modules_with("qweight")

    def layer(self, name: str, width: int, depth: int) -> Layer:
        own = [rule for rule in self.overrides if rule.pattern is not None and rule.pattern.match(name)]
        if own and own[0].skips:
            raise self.folder.refused(name, "the configuration leaves it out, and the checkpoint has it quantised")
        fields = Fields(
            self.fields.file, self.fields.path, {**self.fields.values, **(own[0].fields.values if own else {})}
        )
        bits = fields.number("bits", 1, 32)
        if bits not in (4, 8):
            raise fields.refused("bits", "4 or 8")
        size = fields.number("group_size", -1, _LARGEST)
        size = depth if size == -1 else size
        per = _WORD // bits
        if size < 1 or depth % size or depth % per or width % per:
            raise self.folder.refused(
                name, f"its weight of {width} by {depth} does not go into groups of {size} and words of {per} numbers"
            )
        groups = depth // size
        tensors = {
            "qweight": Wanted((torch.int32,), ((depth // per, width),)),
            "qzeros": Wanted((torch.int32,), ((groups, width // per),)),
            "scales": Wanted(FLOATS, ((groups, width),)),
        }
        if self.folder.dtype(f"{name}.g_idx") is not None or fields.flag("desc_act", False):
            tensors["g_idx"] = Wanted((torch.int32,), ((depth,),))
        return Layer(_Packed(bits, self.less_one, self._ordered(name, depth, groups)), tensors)

    def _ordered(self, name: str, depth: int, groups: int) -> bool:
        """Whether the groups of a layer are neighbours."""
        stored = f"{name}.g_idx"
        if self.folder.dtype(stored) != torch.int32 or self.folder.shape(stored) != (depth,):
            return True  # refused for that
        groups_of = self.folder.checkpoint.tensor(stored)
        return bool((groups_of == neighbours(groups_of, groups)).all())


def read(folder: Folder, fields: Fields) -> Gptq:
    """What a folder whose configuration names GPTQ says of its layers. Raises ModelError."""
    written = fields.one_of("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    fields.one_of("pack_dtype", ("int32",), "int32")
    fields.refuse_unless_empty("rotation", "adapter", "lora")
    return Gptq(folder, fields, written == "gptq", tuple(_overrides(fields)))


def _overrides(fields: Fields) -> list[_Rule]:
    """What `dynamic` says of modules by patterns: those with - are left out, others have options of their own."""
    dynamic = fields.part("dynamic")
    found = []
    for text in () if dynamic is None else dynamic.values:
        own = dynamic.part(text) if dynamic is not None else None
        pattern = fields.pattern("dynamic", text.removeprefix("+:").removeprefix("-:"))
        found.append(_Rule(pattern, own or Fields(fields.file, fields.path, {}), text.startswith("-:")))
    return found
