"""`torch.ops.air.moe_distribute_dispatch` and `moe_distribute_combine`: the tokens of all ranks of a group go to those
that have their experts, and what these make of them comes back.

On an NPU they are torch_npu's ops of these names (`npu_…_v2`). On the host, where builds prove programs, everything is
gathered: the numbers are the same. Expert number e is one of the rank number `e // (experts of a rank)`.
"""

from typing import Any

import torch
from torch import Tensor

from .groups import Group, members

NOTE = 128  # int32 numbers that the kernels keep for each row, to find the way back
MOST_CHOSEN = 16  # experts of a token
_library = torch.library.Library("air", "FRAGMENT")


# ---- shapes ----------------------------------------------------------------------------------------------------------


def received(experts: Tensor, number: int, ranks: int) -> int:
    """The most rows that a rank can receive: of every rank's tokens, once for each of their experts that it has."""
    tokens, chosen = experts.shape
    return ranks * tokens * min(number // ranks, chosen)


def _dispatch_shapes(
    x: Tensor, experts: Tensor, number: int, ranks: int, group: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if x.dim() != 2 or experts.dim() != 2 or x.shape[0] != experts.shape[0] or experts.dtype != torch.int32:
        given = f"{list(x.shape)} and {experts.dtype} {list(experts.shape)}"
        raise ValueError(f"moe_distribute_dispatch takes x (n, width) and experts (n, k) int32, not {given}")
    own, rows = _of_a_rank(number, ranks), received(experts, number, ranks)
    _refuse_too_many(experts, number)
    return (
        x.new_empty(rows, x.shape[1]),
        x.new_empty(rows, dtype=torch.float32),
        x.new_empty(rows * NOTE, dtype=torch.int32),
        x.new_empty(own, dtype=torch.int64),
        x.new_empty(own * ranks, dtype=torch.int32),
    )


def _combine_shape(
    rows: Tensor, experts: Tensor, weights: Tensor, notes: Tensor, counts: Tensor, number: int, ranks: int, group: str
) -> Tensor:
    sent = rows.dim() == 2 and experts.dim() == 2 and weights.shape == experts.shape
    if not sent or weights.dtype != torch.float32 or experts.dtype != torch.int32:
        raise ValueError("moe_distribute_combine takes rows (a, width), experts (n, k) int32, weights (n, k) float32")
    own, most = _of_a_rank(number, ranks), received(experts, number, ranks)
    _refuse_too_many(experts, number)
    noted = notes.dtype == counts.dtype == torch.int32 and notes.shape == (most * NOTE,)
    if rows.shape[0] != most or not noted or counts.shape != (own * ranks,):
        raise ValueError("moe_distribute_combine takes what moe_distribute_dispatch gave for these experts")
    return rows.new_empty(experts.shape[0], rows.shape[1])


def _refuse_too_many(experts: Tensor, number: int) -> None:
    if experts.shape[1] > (limit := min(number, MOST_CHOSEN)):
        raise ValueError(
            f"moe_distribute: a token has {experts.shape[1]} experts, and the kernels take {limit} of {number}"
        )


def _of_a_rank(number: int, ranks: int) -> int:
    if ranks < 1 or number < 1 or number % ranks:
        raise ValueError(f"{number} experts cannot be cut into {ranks} equal parts")
    return number // ranks


# ---- on the host -----------------------------------------------------------------------------------------------------


def _dispatch(
    x: Tensor, experts: Tensor, number: int, ranks: int, name: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The rows of all ranks' x for this rank's experts, in the order of experts, then of ranks, then of tokens.

    x: (n, width); experts: (n, k) int32 from 0 to `number` - 1, of a token no two alike. Returns the rows (a, width)
    with a = `received`, of which those behind the last expert's end mean nothing; what a quantised exchange would scale
    them by, float32 (a,); notes for the way back, int32 (a * 128,); where each own expert's rows end, int64 (number /
    ranks,); and how many rows came from each rank for each expert, summed up, int32 (number,).
    """
    rows, scales, notes, ends, counts = _dispatch_shapes(x, experts, number, ranks, name)
    found, own = members(ranks, name), ends.shape[0]
    _refuse_alike(experts, number)
    every, chosen = _of_all(found, x), _of_all(found, experts).reshape(-1).long() - found.number * own
    chosen[(chosen < 0) | (chosen >= own)] = own
    order = chosen.argsort(stable=True)[: rows.shape[0]]
    torch.index_select(every, 0, order // experts.shape[1], out=rows)
    notes.zero_().view(-1, NOTE)[:, 0] = order
    source = torch.arange(len(chosen)) // experts.numel()
    counts.copy_(torch.bincount(chosen * ranks + source, minlength=(own + 1) * ranks)[: own * ranks].cumsum(0))
    return rows, scales.zero_(), notes, ends.copy_(counts.view(own, ranks)[:, -1]), counts


def _combine(
    rows: Tensor, experts: Tensor, weights: Tensor, notes: Tensor, counts: Tensor, number: int, ranks: int, name: str
) -> Tensor:
    """For each token of this rank the sum of its experts' rows, each times its weight.

    rows: (a, width), what experts made of those that `moe_distribute_dispatch` gave, in their order; experts: (n, k);
    weights: (n, k) float32; notes and counts: as it gave them. Products are summed in float32, and rounded once.
    """
    made = _combine_shape(rows, experts, weights, notes, counts, number, ranks, name)
    found, most = members(ranks, name), ranks * experts.numel()
    end = int(counts[-1])
    places = notes.view(-1, NOTE)[:, 0][: max(end, 0)].long()
    if not 0 <= end <= rows.shape[0] or (end and not 0 <= int(places.min()) <= int(places.max()) < most):
        raise ValueError("moe_distribute_combine takes the notes and counts that moe_distribute_dispatch gave")
    sums, tokens = rows.new_zeros(made.shape, dtype=torch.float32), ranks * experts.shape[0]
    for choice in range(experts.shape[1]):  # one after the other: no more memory than the rows have
        here = (places % experts.shape[1] == choice).nonzero().squeeze(1)
        back, own = rows.new_zeros(tokens, rows.shape[1]), torch.empty_like(made)
        back[places[here] // experts.shape[1]] = rows[here]
        found.reduce_scatter(own, back, "sum")  # each row is that of one rank; the others have zeros
        sums += own.float() * weights[:, choice, None]
    return made.copy_(sums)


def _of_all(found: Group, x: Tensor) -> Tensor:
    every = x.new_empty(found.size * x.shape[0], x.shape[1])
    found.all_gather(every, x.contiguous())
    return every


def _refuse_alike(experts: Tensor, number: int) -> None:
    """Raises ValueError for what the kernels of a device would take for something else."""
    ordered = experts.sort(-1).values
    if experts.numel() and not 0 <= int(ordered.min()) <= int(ordered.max()) < number:
        raise ValueError(f"moe_distribute_dispatch: a token has an expert that is none of {number}")
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise ValueError("moe_distribute_dispatch: a token has the same expert twice")


# ---- on an NPU -------------------------------------------------------------------------------------------------------

_ALIKE = {"shared_expert_num": 0}  # of both calls: shared experts are layers of their own


def _npu_dispatch(
    x: Tensor, experts: Tensor, number: int, ranks: int, name: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    found: Any = members(ranks, name)
    made = torch.ops.npu.npu_moe_distribute_dispatch_v2(
        x, experts, found.for_experts, ranks, found.number, number, expert_token_nums_type=0, **_ALIKE
    )
    rows, scales, notes, ends, counts = made[:5]
    return rows, scales, notes, ends, counts


def _npu_combine(
    rows: Tensor, experts: Tensor, weights: Tensor, notes: Tensor, counts: Tensor, number: int, ranks: int, name: str
) -> Tensor:
    found: Any = members(ranks, name)
    made: Tensor = torch.ops.npu.npu_moe_distribute_combine_v2(
        rows, experts, notes, counts, weights, found.for_experts, ranks, found.number, number, **_ALIKE
    )
    return made


_OPS: tuple[tuple[str, Any, Any, Any], ...] = (
    (
        "moe_distribute_dispatch(Tensor x, Tensor experts, int number, int ranks, str group) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        _dispatch,
        _npu_dispatch,
        _dispatch_shapes,
    ),
    (
        "moe_distribute_combine(Tensor rows, Tensor experts, Tensor weights, Tensor notes, Tensor counts, int number, "
        "int ranks, str group) -> Tensor",
        _combine,
        _npu_combine,
        _combine_shape,
    ),
)


def _define() -> None:
    for schema, kernel, on_npu, shape in _OPS:
        name = schema.partition("(")[0]
        _library.define(schema)
        for key, function in (("CPU", kernel), ("PrivateUse1", on_npu), ("Meta", shape)):
            _library.impl(name, function, key)


_define()
DISPATCH, COMBINE = torch.ops.air.moe_distribute_dispatch.default, torch.ops.air.moe_distribute_combine.default
