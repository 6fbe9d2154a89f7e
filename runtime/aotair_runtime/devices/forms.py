"""Which forms does the CPU have for weights, by the op that reads them?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from . import int4, onednn
from .base import Packed


@dataclass(frozen=True)
class Form:
    """`packed` gives a weight in this form, or None where it stays as it is; `nbytes` what that takes, by shape and
    dtype."""

    packed: Callable[[torch.Tensor], Packed | None]
    nbytes: Callable[[Sequence[int], torch.dtype], int]


FORMS: Mapping[str, Form] = {
    "aten::linear": Form(onednn.packed, onednn.packed_bytes),
    "aten::_weight_int4pack_mm_for_cpu": Form(int4.packed, int4.packed_bytes),
}
