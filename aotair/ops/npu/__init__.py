"""`torch.ops.npu`: the ops of torch_npu that models, fusion rules and the reinplace table use, on a machine without it.

Each has the schema of torch_npu 2.13 and a host kernel in plain PyTorch, with float32 inside (attention: torch's own);
shapes come from the same code on meta tensors where that is possible. What a host kernel does not serve it refuses by
the name of the argument. Importing this package defines what is not defined yet.
"""

from ..registry import define_op
from . import (
    cache,
    fused_infer_attention,
    grouped_matmul,
    layout,
    lengths,
    matmul,
    meeting_products,
    mla,
    moe,
    norm,
    quant,
    quant_matmul,
    weight_quant_matmul,
)

OPS = (
    *norm.OPS,
    *quant.OPS,
    *matmul.OPS,
    *meeting_products.OPS,
    *quant_matmul.OPS,
    *weight_quant_matmul.OPS,
    *grouped_matmul.OPS,
    *layout.OPS,
    *moe.OPS,
    *fused_infer_attention.OPS,
    *cache.OPS,
    *mla.OPS,
)

define_op("npu", OPS)
define_op("air", lengths.ops())
