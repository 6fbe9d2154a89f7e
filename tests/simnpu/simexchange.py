"""What do the kernels compute that send tokens to the ranks of their experts, and what these made of them back?

They meet in the communicator that they find by its name, and refuse what the documentation of torch_npu's
`npu_moe_distribute_dispatch_v2` and `npu_moe_distribute_combine_v2` says that Atlas A3 does not take, and what has no
reference here: shared experts, quantised rows, a second group. Rows that no token fills are not numbers.
"""

import torch
from simcann import cann
from simkernels import stream
from simmeeting import communicator, done

_TYPES = {torch.float16: 3, torch.bfloat16: 11, torch.int32: 2}  # HCCL's numbers
_SUM, _NOTE = 0, 128


def dispatch(x, experts, group, size, rank, number, *, expert_token_nums_type=1, **others):
    """`npu::npu_moe_distribute_dispatch_v2`."""
    _check(x, experts, size, number, others)
    found, own, k = communicator(group, size, range(2, 385)), number // size, experts.shape[1]
    rows = size * x.shape[0] * min(own, k)
    every, chosen = _gathered(x, size, found), _gathered(experts, size, found).view(-1) - rank * own
    chosen = torch.where((chosen < 0) | (chosen >= own), own, chosen)
    order = torch.argsort(chosen, stable=True)[:rows]
    sorted_, here = chosen[order], chosen[order] < own
    expanded = torch.where(here.unsqueeze(-1), every.index_select(0, order // k), float("nan"))
    notes = torch.full((rows, _NOTE), -1, dtype=torch.int32, device=x.device)
    notes[:, 0] = torch.where(here, order, -1).to(torch.int32)
    places = sorted_ * size + order // experts.numel()
    counts = torch.searchsorted(places, torch.arange(own * size, device=x.device), right=True)
    ends = counts.view(own, size)[:, -1].to(torch.int64)
    if expert_token_nums_type:
        ends = torch.cat([ends[:1], ends[1:] - ends[:-1]])
    nothing = x.new_empty(0, dtype=torch.float32)
    scales = x.new_full((rows,), float("nan"), dtype=torch.float32)
    return expanded, scales, notes.view(-1), ends, counts.to(torch.int32), nothing.to(torch.int32), nothing


def combine(rows, experts, notes, counts, weights, group, size, rank, number, **others):
    """`npu::npu_moe_distribute_combine_v2`."""
    _check(rows, experts, size, number, others)
    if weights.dtype != torch.float32 or weights.shape != experts.shape or counts.numel() != number:
        raise RuntimeError("the device takes weights in float32, one for each expert, and what dispatch gave")
    found, most = communicator(group, size, range(2, 385)), size * experts.numel()
    places = notes.view(-1, _NOTE)[:, 0].to(torch.int64)
    here = places >= 0
    back = rows.new_zeros(most + 1, rows.shape[1])
    back = back.index_copy(0, torch.where(here, places, most), torch.where(here.unsqueeze(-1), rows, 0))
    own = rows.new_empty(experts.numel(), rows.shape[1])
    given = (back.data_ptr(), own.data_ptr(), own.numel(), _TYPES[own.dtype])
    done(cann.HcclReduceScatter(*given, _SUM, found, stream()))
    products = own.view(*experts.shape, -1).float() * weights.unsqueeze(-1)
    return products.sum(1).to(rows.dtype)


def _gathered(x, size, found):
    every = x.new_empty(size * x.shape[0], x.shape[1])
    done(cann.HcclAllGather(x.data_ptr(), every.data_ptr(), x.numel(), _TYPES[x.dtype], found, stream()))
    return every


def _check(x, experts, size, number, others) -> None:
    if others.pop("shared_expert_num", 1) or any(value not in (None, "", 0) for value in others.values()):
        raise NotImplementedError(f"only experts that are shared by none have a reference, without {', '.join(others)}")
    if x.dtype not in (torch.float16, torch.bfloat16) or experts.dtype != torch.int32:
        raise RuntimeError(f"the device sends no {x.dtype} to experts of {experts.dtype}")
    if not 1024 <= x.shape[1] <= 7168 or not 0 < experts.shape[0] <= 512 or not 0 < experts.shape[1] <= 16:
        raise RuntimeError("the device takes rows of 1024 to 7168, 1 to 512 tokens and 1 to 16 experts of each")
    if not 0 < number <= 512 or number % size or not x.is_contiguous() or not experts.is_contiguous():
        raise RuntimeError("the device takes as many experts on each rank, 512 in all, and rows without gaps")
