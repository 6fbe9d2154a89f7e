"""What does torch_npu's fused attention compute? aten's scaled_dot_product_attention becomes this op on the device."""

import torch

ROWS = 8  # the device repeats each row's maximum and sum so often


def _masked(scores: torch.Tensor, atten_mask: torch.Tensor | None, sparse_mode: int) -> torch.Tensor:
    """Scores without what the mask hides: True hides, the opposite of PyTorch's masks."""
    if sparse_mode == 2:  # the mask is a compressed one of 2048 x 2048, and stands for causal attention
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    elif sparse_mode in (0, 1):
        hidden = atten_mask
    else:
        raise NotImplementedError(f"sparse_mode {sparse_mode} has no reference")
    return scores if hidden is None else scores.masked_fill(hidden.bool(), float("-inf"))


def fusion_attention_v3(
    query, key, value, head_num, input_layout, pse=None, padding_mask=None, atten_mask=None, scale=1.0, keep_prob=1.0,
    pre_tockens=2147483647, next_tockens=2147483647, inner_precise=0, prefix=None, actual_seq_qlen=None,
    actual_seq_kvlen=None, sparse_mode=0, gen_mask_parallel=True, sync=False, softmax_layout="", sink=None,
):  # fmt: skip
    """The forward of npu::npu_fusion_attention_v3 as sdpa calls it: layout BNSD, no dropout, whole sequences."""
    unsupported = (pse, padding_mask, prefix, actual_seq_qlen, actual_seq_kvlen, sink)
    if input_layout != "BNSD" or keep_prob != 1.0 or any(v is not None for v in unsupported):
        raise NotImplementedError("only layout BNSD without dropout, pse, prefix, lengths and sink has a reference")
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1).float(), value.repeat_interleave(groups, 1).float()
    scores = _masked(query.float() @ key.mT * scale, atten_mask, sparse_mode)
    highest = scores.amax(-1, keepdim=True)
    weights = (scores - highest.clamp(min=torch.finfo(torch.float32).min)).exp()
    total = weights.sum(-1, keepdim=True)
    out = ((weights / total) @ value).to(query.dtype)
    repeated = [t.expand(*t.shape[:-1], ROWS).contiguous() for t in (highest, total)]
    none = torch.empty(0, dtype=query.dtype, device=query.device)
    random = [torch.zeros(1, dtype=torch.int64, device=query.device) for _ in range(2)]
    return out, *repeated, none, *random
