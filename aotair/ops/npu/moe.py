"""Which experts serve a token.

Source: the documentation of torch_npu's `npu_moe_gating_top_k_softmax` (aclnnMoeGatingTopKSoftmax).
"""

import torch
from torch import Tensor

from ..registry import HostOp


def gating_top_k_softmax(x: Tensor, finished: Tensor | None = None, k: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest of `softmax(x)` over the last dimension, and where they are.

    x: (..., experts), float16, bfloat16 or float32; finished: (...) bool, rows whose experts become `experts`, an index
    that no expert has. Returns the weights, like x; the experts, int32; and for each its row in the order that puts all
    first choices before all second ones, int32: all (..., k).
    """
    weights, experts = torch.softmax(x.float(), -1).topk(k, -1)
    experts = experts.to(torch.int32)
    if finished is not None:
        experts = torch.where(finished.unsqueeze(-1), x.shape[-1], experts).to(torch.int32)
    tokens = weights.shape[:-1].numel()
    rows = torch.arange(tokens * k, dtype=torch.int32, device=x.device).view(k, tokens).t().reshape(weights.shape)
    return weights.to(x.dtype), experts, rows.contiguous()


OPS = (
    HostOp(
        "npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) -> (Tensor, Tensor, Tensor)",
        gating_top_k_softmax,
    ),
)
