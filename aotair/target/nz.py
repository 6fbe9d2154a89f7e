"""Which kernels of Ascend's Atlas A2 and A3 read a weight in the format NZ, and of which kind?

Source: CANN's documentation of the kernels named here, and op-plugin, whose ops call them where a weight's storage is
in NZ; torch_npu's of the products that meet other ranks. NZ has blocks of 16 rows by 32 bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class NzKernel:
    """`name`: CANN's. `places` are the weights' among the op's arguments, `listed` whether a list of one stands there.
    A weight has one of `dtypes` and `dims` dimensions; `turned`: it may be a transposed view of what is stored.
    `most`: the largest last dimension; `whole_blocks`: rows and columns are multiples of a block's. `bias`: the
    dtype of a bias, by that of the weight; `results`: the dtypes of results, where not all that the op has; `without`:
    arguments of the op that the kernel takes beside no weight of these dtypes."""

    name: str
    places: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    dims: int = 2
    listed: bool = False
    turned: bool = False
    most: int | None = None
    whole_blocks: bool = False
    bias: tuple[tuple[torch.dtype, torch.dtype], ...] = ()
    results: tuple[torch.dtype, ...] = ()
    without: tuple[str, ...] = ()


_GROUPED = NzKernel(
    "aclnnGroupedMatmulWeightNz",
    places=(1,),
    dtypes=(*_HALVES, torch.int8),
    dims=3,
    listed=True,
    whole_blocks=True,
    bias=((torch.float16, torch.float16), (torch.bfloat16, torch.float32), (torch.int8, torch.int32)),
    results=_HALVES,
    without=("antiquant_scale",),
)
_PROLOG = NzKernel("aclnnMlaPrologV3WeightNz", places=(1, 2, 4), dtypes=(torch.bfloat16,))
KERNELS: Mapping[str, NzKernel] = {
    "aten::mm": NzKernel("aclnnMatmulWeightNz", places=(1,), dtypes=_HALVES, turned=True),
    "aten::addmm": NzKernel("aclnnAddmmWeightNz", places=(2,), dtypes=_HALVES, turned=True),
    "npu::npu_mm_all_reduce_base": NzKernel("aclnnMatmulAllReduce", places=(1,), dtypes=_HALVES, turned=True),
    "npu::npu_mm_reduce_scatter_base": NzKernel("aclnnMatmulReduceScatterV2", places=(1,), dtypes=_HALVES, turned=True),
    "npu::npu_all_gather_base_mm": NzKernel("aclnnAllGatherMatmulV2", places=(1,), dtypes=_HALVES, turned=True),
    "npu::npu_quant_matmul": NzKernel("aclnnQuantMatmulWeightNz", places=(1,), dtypes=(torch.int8,), most=65535),
    "npu::npu_grouped_matmul": _GROUPED,
    "npu::npu_grouped_matmul.List": _GROUPED,
    "npu::npu_mla_prolog_v3": _PROLOG,
    "npu::npu_mla_prolog_v3_functional": _PROLOG,
}
# Products that have no such kernel: the weight's place among their arguments, and why.
WITHOUT: Mapping[str, tuple[int, str]] = {
    "npu::npu_weight_quant_batchmatmul": (1, "aclnnWeightQuantBatchMatmulNz is a kernel of Ascend 950 alone"),
    "aten::linear": (1, "its input has gaps, so that it is no product of two matrices"),
    "aten::bmm": (1, "op-plugin passes no batch of matrices in NZ to a kernel of its own"),
}


def block(kind: torch.dtype) -> tuple[int, int]:
    """The rows and columns of a block."""
    return 16, 32 // kind.itemsize
