"""`torch.ops.air.linear_int4`: a product with a weight of four bits, for CPUs.

On a node it is torch's `_weight_int4pack_mm_for_cpu`, over a weight that the node packs for its processor; where many
rows make that slow, or nothing may be packed, it is the ops of which the kernel here is made.
"""

import torch
from torch import Tensor

from aotair_runtime.devices.int4 import numbers

from .registry import HostOp, define_op


def linear_int4(x: Tensor, rows: Tensor, group: int, factors: Tensor) -> Tensor:
    """`x @ weight.T` for x (n, in), where the weight (out, in) is `(number - 8) * scale + summand`.

    rows: (out, in / 2) uint8, two numbers 0 … 15 of neighbours in each, the first in the lower four bits. factors:
    (in / group, out, 2) in the dtype of x, the scale and the summand of each group of neighbours of a row.
    """
    wide = numbers(rows).float().unflatten(1, (-1, group)) - 8
    scale, summand = factors.float().permute(1, 0, 2).unsqueeze(2).unbind(3)
    return torch.nn.functional.linear(x, (wide * scale + summand).flatten(1).to(x.dtype))


def _shape(x: Tensor, rows: Tensor, group: int, factors: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], rows.shape[0])


define_op(
    "air", [HostOp("linear_int4(Tensor x, Tensor rows, int group, Tensor factors) -> Tensor", linear_int4, _shape)]
)
OP = torch.ops.air.linear_int4.default
