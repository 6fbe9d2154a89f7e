"""Products that meet other ranks, as the rules for them look for these."""

import torch
from fusing import half

aten, air = torch.ops.aten, torch.ops.air
ROWS, WEIGHT, MATRIX = half(128, 256), half(32, 256, seed=1) / 16, half(256, 32, seed=1) / 16
OPS = {
    "mm_all_reduce": "npu_mm_all_reduce_base",
    "mm_reduce_scatter": "npu_mm_reduce_scatter_base",
    "all_gather_mm": "npu_all_gather_base_mm",
}


def meeting(rule: str, product=aten.linear.default, axis: str = "tp", reduce: str = "sum", ranks: int = 2):
    """A product of two factors as the rule looks for it, along an axis of so many ranks."""

    def function(left, right):
        if rule == "all_gather_mm":
            return (product(air.all_gather.default(left, ranks, axis), right) * 1,)
        made = product(left, right)
        if rule == "mm_all_reduce":
            return (air.all_reduce.default(made, reduce, axis) * 1,)
        return (air.reduce_scatter.default(made, reduce, ranks, axis) * 1,)

    return function
