"""Which experts serve a token, its rows in their order, and the sum of what they make.

Source: the documentation of torch_npu's `npu_moe_gating_top_k_softmax` (aclnnMoeGatingTopKSoftmax),
`npu_moe_gating_top_k` (aclnnMoeGatingTopK), `npu_moe_init_routing_v2` (aclnnMoeInitRoutingV3) and
`npu_moe_token_unpermute` (aclnnMoeTokenUnpermute).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..registry import HostOp, Unserved, only, refuse

_SOFTMAX = "npu_moe_gating_top_k_softmax_v2"
_GATING, _ROUTING, _UNPERMUTE = "npu_moe_gating_top_k", "npu_moe_init_routing_v2", "npu_moe_token_unpermute"


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


def gating_top_k_softmax_v2(
    x: Tensor, *, k: int = 1, finished: Tensor | None = None, renorm: int = 0, output_softmax: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """`gating_top_k_softmax` without rows (renorm 0), or the softmax of the k largest of x (renorm 1).

    x: (tokens, experts). Returns the weights, like x, and the experts, int32, both (tokens, k); and all of the softmax,
    float32 like x, where output_softmax asks for it without renorm, else nothing, (0,).
    """
    if finished is not None or x.dim() != 2:
        raise Unserved(f"the host kernel of {_SOFTMAX} takes x of two dimensions and no finished")
    only(_SOFTMAX, "renorm", renorm, (0, 1))
    wide = x.float()
    scores = wide if renorm else wide.softmax(-1)
    weights, experts = scores.topk(k, -1)
    weights = weights.softmax(-1) if renorm else weights
    every = scores if output_softmax and not renorm else x.new_empty(0, dtype=torch.float32)
    return weights.to(x.dtype), experts.to(torch.int32), every


def gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
    **unserved: object,
) -> tuple[Tensor, Tensor, Tensor]:
    """The k experts of each row with the largest `score + bias`, among those of the best groups, and their weights.

    The scores are `softmax(x)` (norm_type 0) or `sigmoid(x)` (1). Experts lie in group_count groups of equal size, of
    which the k_group best are kept: by the largest in each (group_select_mode 0), or by the sum of its two largest (1).
    The weights are the scores without bias; of sigmoids, divided by their sum plus eps; times routed_scaling_factor.
    x: (tokens, experts), float16, bfloat16 or float32; bias: (experts,) like x. Returns the weights, like x, and the
    experts, int32, both (tokens, k), and all scores, float32.
    """
    refuse(_GATING, unserved)
    only(_GATING, "renorm", renorm, (0,))
    only(_GATING, "norm_type", norm_type, (0, 1))
    only(_GATING, "group_select_mode", group_select_mode, (0, 1))
    only(_GATING, "out_flag", out_flag, (False,))
    wide = x.float()
    scores = wide.sigmoid() if norm_type else wide.softmax(-1)
    choice = scores if bias is None else scores + bias.float()
    if group_count > 1:
        groups = choice.unflatten(-1, (group_count, -1))
        best = groups.topk(2, -1).values.sum(-1) if group_select_mode else groups.amax(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, best.topk(k_group, -1).indices, True)
        choice = groups.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(-2)
    experts = choice.topk(k, -1).indices
    weights = scores.gather(-1, experts)
    if norm_type:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    return (weights * routed_scaling_factor).to(x.dtype), experts.to(torch.int32), scores


def _gating_shape(x: Tensor, k: int, **options: object) -> tuple[Tensor, Tensor, Tensor]:
    refuse(_GATING, {name: options.pop(name) for name in ("input_ids", "tid2eid") if name in options})
    shape = x.shape[0], k
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int32), x.new_empty(x.shape, dtype=torch.float32)


def init_routing(
    x: Tensor,
    expert_idx: Tensor,
    *,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    **unserved: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each row of x once for each of its experts, in the order of experts, and then of rows.

    x: (rows, width); expert_idx: (rows, k) int32, less than expert_num. Returns those rows (rows * k, width); for each
    row's each expert where its row is, int32 (rows * k,); how many rows each expert has, int64 (expert_num,), which is
    expert_tokens_num_type 1; and scales, float32 (rows * k,), that nothing is written into without quantisation.
    """
    _only_plain(expert_num, active_expert_range, unserved, quant_mode=quant_mode, drop_pad_mode=drop_pad_mode)
    only(_ROUTING, "expert_tokens_num_type", expert_tokens_num_type, (1,))
    only(_ROUTING, "expert_tokens_num_flag", expert_tokens_num_flag, (True,))
    only(_ROUTING, "row_idx_type", row_idx_type, (0,))
    every = expert_idx.shape[0] * expert_idx.shape[1]
    if expert_idx.dtype != torch.int32:
        raise Unserved(f"{_ROUTING} takes an expert_idx of int32", got=str(expert_idx.dtype))
    if x.device.type == "meta":
        counts = x.new_empty(expert_num, dtype=torch.int64)
        scales, places = x.new_empty(every, dtype=torch.float32), x.new_empty(every, dtype=torch.int32)
        return x.new_empty(every, x.shape[1]), places, counts, scales
    only(_ROUTING, "active_num", active_num, (-1, 0, every))
    _, order = expert_idx.flatten().sort(stable=True)
    counts = torch.bincount(expert_idx.flatten(), minlength=expert_num)
    rows = x[order // expert_idx.shape[1]]
    return rows, order.argsort().to(torch.int32), counts, torch.zeros(every, device=x.device)


def _only_plain(
    experts: int, active: Sequence[int], unserved: dict[str, object], *, quant_mode: int, drop_pad_mode: int
) -> None:
    """Every expert is active, no row is left out, and nothing is quantised."""
    refuse(_ROUTING, unserved)
    only(_ROUTING, "quant_mode", quant_mode, (-1,))
    only(_ROUTING, "drop_pad_mode", drop_pad_mode, (0,))
    if list(active) not in ([], [0, experts]):
        raise Unserved(f"the host kernel of {_ROUTING} takes all experts for active", got=str(list(active)))


def token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> Tensor:
    """For each row of probs (rows, k) the sum of `permuted_tokens[sorted_indices]`, k at a time, times probs.

    permuted_tokens: (rows * k, width), float16, bfloat16 or float32; sorted_indices: (rows * k,) int32. Without probs k
    is 1, and the rows are only put in order.
    """
    only(_UNPERMUTE, "padded_mode", padded_mode, (False,))
    only(_UNPERMUTE, "restore_shape", restore_shape, (None,))
    if permuted_tokens.device.type == "meta":
        rows = sorted_indices.shape[0] if probs is None else probs.shape[0]
        return permuted_tokens.new_empty(rows, permuted_tokens.shape[1])
    own = permuted_tokens.index_select(0, sorted_indices).float()
    if probs is not None:
        own = (own.unflatten(0, tuple(probs.shape)) * probs.float().unsqueeze(-1)).sum(1)
    return own.to(permuted_tokens.dtype)


OPS = (
    HostOp(
        "npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) -> (Tensor, Tensor, Tensor)",
        gating_top_k_softmax,
    ),
    HostOp(
        f"{_SOFTMAX}(Tensor x, *, int k=1, Tensor? finished=None, int? renorm=0, bool? output_softmax=False) "
        "-> (Tensor, Tensor, Tensor)",
        gating_top_k_softmax_v2,
    ),
    HostOp(
        f"{_GATING}(Tensor x, int k, *, Tensor? bias=None, Tensor? input_ids=None, Tensor? tid2eid=None, "
        "int k_group=1, int group_count=1, int group_select_mode=0, int renorm=0, int norm_type=0, "
        "bool out_flag=False, float routed_scaling_factor=1., float eps=9.9999999999999995e-21) "
        "-> (Tensor, Tensor, Tensor)",
        gating_top_k,
        _gating_shape,
    ),
    HostOp(
        f"{_ROUTING}(Tensor x, Tensor expert_idx, *, Tensor? scale=None, Tensor? offset=None, int active_num=-1, "
        "int expert_capacity=-1, int expert_num=-1, int drop_pad_mode=0, int expert_tokens_num_type=0, "
        "bool expert_tokens_num_flag=False, int quant_mode=-1, int[2] active_expert_range=[], int row_idx_type=0, "
        "int? x_dtype=None) -> (Tensor, Tensor, Tensor, Tensor)",
        init_routing,
    ),
    HostOp(
        f"{_UNPERMUTE}(Tensor permuted_tokens, Tensor sorted_indices, Tensor? probs=None, bool padded_mode=False, "
        "int[]? restore_shape=None) -> Tensor",
        token_unpermute,
    ),
)
