"""Which experts serve a token, in the spellings of transformers' routers -> npu_moe_gating_top_k and its relatives."""

from collections.abc import Sequence

import torch
from torch.fx.node import Node

from ..matcher import Either, KeywordArg, MultiOutputPattern, PatternExpr, call, commutes, part
from ..rule import Fused, Results, Rule
from .npu import HALVES, dtype_text, val

_aten, _npu = torch.ops.aten, torch.ops.npu
_DTYPES = (*HALVES, torch.float32)
_MOST_CHOSEN, _MOST_EXPERTS, _ALIGNED = 1024, 2048, 32
_X, _BIAS = KeywordArg("x"), KeywordArg("bias")
_SOFTMAX = call(_aten._softmax.default, _X, KeywordArg("softmax_dim"), False)


def _topk(scores: PatternExpr) -> list[PatternExpr]:
    """The k largest, in every form in which the arguments may be given; the order of equal ones is that of the op."""
    dim = KeywordArg("topk_dim")
    rests = [(), (dim,), (dim, True), (dim, True, KeywordArg("sorted"))]
    return [call(_aten.topk.default, scores, KeywordArg("k"), *rest) for rest in rests]


# ---- of all experts --------------------------------------------------------------------------------------------------


def _check(x: Node, k: object, softmax_dim: int, topk_dim: int = -1) -> str | None:
    if val(x).dim() != 2 or {softmax_dim % 2, topk_dim % 2} != {1}:
        return f"{x.name} has {val(x).dim()} dimensions, or its experts are not the last one"
    if val(x).dtype not in _DTYPES:
        return f"{x.name} is {dtype_text(x)}"
    experts = val(x).shape[1]
    if not isinstance(experts, int) or not isinstance(k, int) or not 0 < k <= min(experts, _MOST_CHOSEN):
        return f"{k} of {experts} experts are chosen: the kernel takes numbers, up to {_MOST_CHOSEN}"
    return None


def _replace(x: torch.Tensor, k: int) -> Results:
    weights, experts, _ = _npu.npu_moe_gating_top_k_softmax.default(x, None, k)
    return weights, experts.to(torch.int64)


def _replace_after(x: torch.Tensor, k: int) -> Results:
    weights, experts, _ = _npu.npu_moe_gating_top_k_softmax_v2.default(x, k=k, renorm=1)
    return weights, experts.to(torch.int64)


def _of_all() -> list[Fused]:
    before = [MultiOutputPattern([part(top, 0), part(top, 1)]) for top in _topk(_SOFTMAX)]
    after = [
        MultiOutputPattern([call(_aten._softmax.default, part(top, 0), KeywordArg("softmax_dim"), False), part(top, 1)])
        for top in _topk(_X)
    ]
    return [*(Fused(one, _replace, _check) for one in before), *(Fused(one, _replace_after, _check) for one in after)]


# ---- of some groups of experts ---------------------------------------------------------------------------------------


def _check_groups(
    x: Node, k: object, kept: object, groups: Sequence[object], every: Node, bias: Node | None = None, best: object = 2
) -> str | None:
    experts, number = val(x).shape[-1], groups[-2] if len(groups) == 3 else None
    if val(x).dim() != 2 or val(x).dtype not in _DTYPES or not isinstance(experts, int) or not isinstance(number, int):
        return f"{x.name}, {dtype_text(x)} {list(val(x).shape)}, is not one row of experts for each token, in groups"
    if not isinstance(kept, int) or not isinstance(k, int) or number < 1 or experts % number:
        return f"{k} experts of {kept} of {number} groups of {experts} experts"
    size = experts // number
    if size <= 2 or experts > _MOST_EXPERTS or -(-size // _ALIGNED) * _ALIGNED * number > _MOST_EXPERTS:
        return (
            f"{number} groups of {size} experts: the kernel takes groups of more than 2, up to {_MOST_EXPERTS} in all"
        )
    if not 0 < kept <= number or not 0 < k <= kept * size:
        return f"{k} experts are chosen of {kept} groups of {size}"
    if best != 2:
        return f"a group is judged by its {best} best experts, the kernel takes 2"
    if bias is not None and (val(bias).dim() != 1 or val(bias).shape[0] != experts):
        return f"{bias.name} has the shape {list(val(bias).shape)}, not one number for each of {experts} experts"
    if val(every).dtype != val(x).dtype:
        return f"the scores of {x.name} become {dtype_text(every)}"
    return None


def _masked(choice: PatternExpr, judged: PatternExpr, filled: float) -> PatternExpr:
    """The scores to choose from, and `filled` for those of groups that are not among the best."""
    kept = part(call(_aten.topk.default, judged, KeywordArg("kept"), -1, True, KeywordArg("s")), 1)
    zeros = call(_aten.zeros_like.default, judged, pin_memory=False)
    marked = call(_aten.scatter.value, zeros, 1, kept, 1)
    spread = call(_aten.expand.default, call(_aten.unsqueeze.default, marked, -1), KeywordArg("e"))
    copied = call(_aten.clone.default, spread, memory_format=torch.contiguous_format)
    flat = Either(
        call([_aten._unsafe_view.default, _aten.view.default], copied, KeywordArg("v")),
        call([_aten._unsafe_view.default, _aten.view.default], spread, KeywordArg("v")),
    )
    hidden = call(_aten.bitwise_not.default, call(_aten._to_copy.default, flat, dtype=torch.bool))
    return call(_aten.masked_fill.Scalar, choice, hidden, filled)


def _in_groups(choice: PatternExpr) -> PatternExpr:
    return call([_aten.view.default, _aten.reshape.default], choice, KeywordArg("groups"))


def _of_sigmoids() -> list[Fused]:
    """The router of DeepSeek-V3 and GLM-4.5: a group is judged by the sum of its two best."""
    scores = call(_aten.sigmoid.default, _X)
    found = []
    for choice in commutes(_aten.add.Tensor, scores, _BIAS).choices:
        best = call(_aten.topk.default, _in_groups(choice), KeywordArg("best"))
        judged = call(_aten.sum.dim_IntList, part(best, 0), [-1])
        chosen = part(Either(*_topk(_masked(choice, judged, float("-inf")))), 1)
        own = call(_aten.gather.default, scores, 1, chosen)
        total = call(_aten.add.Tensor, call(_aten.sum.dim_IntList, own, [-1], True), KeywordArg("eps"))
        share = call(_aten.div.Tensor, own, total)
        scaled = call(_aten.mul.Tensor, share, KeywordArg("scale"))
        named = {"every": scores}
        found += [
            Fused(MultiOutputPattern([weights, chosen]), _replace_sigmoids, _check_sigmoids, named)
            for weights in (scaled, share)
        ]
    return found


def _check_sigmoids(
    x: Node,
    k: object,
    kept: object,
    groups: Sequence[object],
    every: Node,
    bias: Node,
    best: object,
    eps: object,
    scale: object = 1.0,
    topk_dim: int = -1,
) -> str | None:
    if topk_dim % 2 != 1:
        return f"the experts of {x.name} are not its last dimension"
    if not isinstance(eps, float) or not isinstance(scale, (float, int)):
        return f"{eps} is added to the sum of the weights, and {scale} times them taken: not numbers"
    return _check_groups(x, k, kept, groups, every, bias, best)


def _replace_sigmoids(
    x: torch.Tensor,
    bias: torch.Tensor,
    k: int,
    kept: int,
    groups: Sequence[int],
    eps: float,
    scale: float = 1.0,
) -> Results:
    weights, experts, _ = _npu.npu_moe_gating_top_k.default(
        x,
        k,
        bias=bias.to(x.dtype),
        k_group=kept,
        group_count=groups[1],
        group_select_mode=1,
        norm_type=1,
        routed_scaling_factor=float(scale),
        eps=eps,
    )
    return weights, experts.to(torch.int64)


def _of_softmaxes() -> list[Fused]:
    """The router of DeepSeek-V2: a group is judged by its best."""
    judged = part(call(_aten.max.dim, _in_groups(_SOFTMAX), -1), 0)
    tops = _topk(_masked(_SOFTMAX, judged, 0.0))
    named = {"every": _SOFTMAX}
    return [
        Fused(MultiOutputPattern([part(top, 0), part(top, 1)]), _replace_softmaxes, _check_softmaxes, named)
        for top in tops
    ]


def _check_softmaxes(
    x: Node, k: object, kept: object, groups: Sequence[object], every: Node, softmax_dim: int, topk_dim: int = -1
) -> str | None:
    return _check(x, k, softmax_dim, topk_dim) or _check_groups(x, k, kept, groups, every)


def _replace_softmaxes(x: torch.Tensor, k: int, kept: int, groups: Sequence[int]) -> Results:
    weights, experts, _ = _npu.npu_moe_gating_top_k.default(x, k, k_group=kept, group_count=groups[1])
    return weights, experts.to(torch.int64)


RULE = Rule(
    "lift_gating",
    "softmax or sigmoid of a router, the best groups, topk -> npu_moe_gating_top_k_softmax, npu_moe_gating_top_k",
    (*_of_sigmoids(), *_of_softmaxes(), *_of_all()),
    lifts=True,
)
