"""On NPUs, experts whose tokens travel: `npu_moe_distribute_dispatch_v2` and `npu_moe_distribute_combine_v2`.

Ranks with tokens of their own gather all of them, each computes those of its experts, and what it made goes back in a
sum (`parallel.styles.ExpertsDispatched`). The kernels send each token to the ranks that have its experts alone. What
stands between the two, products above all, is left as it is: each row is still made of the same row.
"""

import operator
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch.fx.node import Argument, Node

from aotair_runtime.devices import exchange

from ..fusion.matcher import CallFunction, FailedMatch, Ignored, KeywordArg, call, part
from ..graph.layers import Writer
from ..graph.operand import index_of
from ..graph.sizes import most
from ..ops.experts import COMBINE, ROUTE
from ..target.target import Target
from .edits import Edits

_aten, _air = torch.ops.aten, torch.ops.air
_HALVES = (torch.float16, torch.bfloat16)
# What the documentation of the two ops says of Atlas A3. The kernels of Atlas A2 take other arguments.
_SOC = "Ascend910_93"
_MOST_RANKS, _MOST_EXPERTS, _MOST_TOKENS, _WIDTHS = 384, 512, 512, (1024, 7168)
# What changes no number of a tensor, where its dtype holds those of all experts; and such dtypes.
_ALIKE = frozenset(
    {
        *(_aten._to_copy.default, _aten.clone.default, _aten.alias.default, _aten.detach.default),
        *(_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default),
    }
)
_HOLDS_ALL = (torch.int16, torch.int32, torch.int64)


class _Found(NamedTuple):
    """The nodes of one layer of experts. `experts`: of each rank."""

    route: Node
    last: Node
    x: Node
    chosen: Node
    weights: Node
    rows: Node
    ranks: int
    axis: str
    experts: int
    nodes: list[Node]


def run(module: torch.fx.GraphModule, edits: Edits) -> None:
    graph, axis = module.graph, ""
    for node in graph.find_nodes(op="call_function", target=_air.reduce_scatter.default):
        found = _found(node)
        if found is None:
            continue
        why = _why_not(found, edits.target) or _other_axis(found, axis)
        if why:
            edits.declined(node, why)
        elif edits.may(node, "tokens go to the ranks that have their experts"):
            axis = found.axis
            _replace(found)


# ---- what is looked for ----------------------------------------------------------------------------------------------


def _gathered(name: str) -> CallFunction:
    return call(_air.all_gather.default, KeywordArg(name), KeywordArg("ranks"), KeywordArg("axis"))


def _pattern() -> tuple[CallFunction, CallFunction]:
    """A layer of experts, and what puts its rows in order."""
    number = call(_aten.sub.Tensor, _gathered("chosen"), KeywordArg("first"))
    others = call(
        _aten.bitwise_or.Tensor,
        call(_aten.lt.Scalar, number, 0),
        call(_aten.ge.Scalar, number, KeywordArg("experts")),
    )
    own = call(_aten.masked_fill.Scalar, number, others, KeywordArg("experts"))
    route = call(ROUTE, _gathered("x"), own, KeywordArg("number"))
    sums = call(COMBINE, KeywordArg("rows"), part(route, 1), _gathered("weights"))
    return call(_air.reduce_scatter.default, sums, "sum", KeywordArg("ranks"), KeywordArg("axis")), route


_LAYER, _ROUTE = _pattern()
_BEHIND = call(_aten.ge.Tensor, Ignored(), call(_aten.select.int, KeywordArg("ends"), 0, -1))
_MASKED = call(_aten.masked_fill.Scalar, KeywordArg("made"), call(_aten.unsqueeze.default, _BEHIND, -1), 0)


def _found(node: Node) -> _Found | None:
    match = _LAYER.match(node)
    if isinstance(match, FailedMatch):
        return None
    given, route = match.kwargs, match.ctx.pattern_to_node[_ROUTE]
    assert route is not None  # a part of what matched
    first = given["first"]
    # The style's own buffer: rank number r has the experts from r * experts on.
    if first.op != "placeholder" or "first_expert" not in first.name or given["number"] != given["experts"] + 1:
        return None
    names = ("x", "chosen", "weights", "rows", "ranks", "axis", "experts")
    return _Found(route, node, **{name: given[name] for name in names}, nodes=match.nodes)


def _ends(route: Node) -> list[Node]:
    """What says where each own expert's rows end."""
    return _users(route, 2)


def _users(route: Node, number: int) -> list[Node]:
    return [user for each in _results(route, number) for user in each.users]


def _results(route: Node, number: int) -> list[Node]:
    return [user for user in route.users if index_of(user) == number]


# ---- what the kernels take -------------------------------------------------------------------------------------------


def _why_not(found: _Found, target: Target) -> str:
    """Why the kernels would not do; empty where they do."""
    tokens, width = found.x.meta["val"].shape
    chosen, number = _chosen(found), found.ranks * found.experts
    if not target.soc.startswith(_SOC):
        return f"the kernels are those of Atlas A3, and target.soc does not say {_SOC}"
    if found.x.meta["val"].dtype not in _HALVES or found.rows.meta["val"].dtype != found.x.meta["val"].dtype:
        return f"{found.x.name} is {found.x.meta['val'].dtype}, the kernels send halves"
    for what, value, least, limit in (
        ("ranks", found.ranks, 2, _MOST_RANKS),
        ("experts", number, 1, _MOST_EXPERTS),
        ("experts of a token", chosen, 1, min(exchange.MOST_CHOSEN, number)),
        ("numbers in a row", width, *_WIDTHS),
    ):
        if not isinstance(value, int) or not least <= value <= limit:
            return f"there are {value} {what}, the kernels take {least} to {limit}"
    if most(tokens) > _MOST_TOKENS:
        return f"a call may have {most(tokens)} tokens, the kernels take {_MOST_TOKENS}"
    if why := _why_alike(found.chosen, number):
        return why
    places, ends = _users(found.route, 1), _users(found.route, 2)
    if len(places) > 1 or not all(map(_leaves_the_last_out, ends)):  # the sum that was found is one of them
        return f"more is read of {found.route.name} than where the rows of its experts end"
    return ""


def _why_alike(chosen: Node, number: int) -> str:
    """Why a token may have the same expert twice, or none, which the kernels would take for something else; empty where
    it has the places of some of its largest scores, one for each expert."""
    node, shape = chosen, chosen.meta["val"].shape
    while (
        node.target in _ALIKE
        and node.meta["val"].dtype in _HOLDS_ALL
        and node.all_input_nodes[0].meta["val"].shape == shape
    ):
        node = node.all_input_nodes[0]
    if not (node.target is operator.getitem and index_of(node) == 1 and _is_top(node.all_input_nodes[0], number)):
        return f"{chosen.name} may hold an expert twice, or none: it is not where a token's highest scores are (topk)"
    return ""


def _is_top(node: Node, number: int) -> bool:
    """Whether a call looks for the highest or least of so many numbers in each row."""
    if node.target is not _aten.topk.default or node.args[2:3] not in ((), (-1,), (1,)):
        return False
    shape = node.all_input_nodes[0].meta["val"].shape
    return len(shape) == 2 and shape[1] == number


def _other_axis(found: _Found, axis: str) -> str:
    if axis in ("", found.axis):
        return ""
    return f"the kernels of a program all meet the same ranks: those of {axis}"


def _leaves_the_last_out(node: Node) -> bool:
    return node.target is _aten.slice.Tensor and node.args[1:] == (0, 0, -1)


# ---- what takes its place --------------------------------------------------------------------------------------------


def _replace(found: _Found) -> None:
    group = (found.ranks * found.experts, found.ranks, found.axis)
    first, last = (Writer(place, found.last, set()) for place in (found.route, found.last))
    chosen = _as(found.chosen, torch.int32, first)
    sent = first.call(exchange.DISPATCH, found.x, chosen, *group)
    rows, notes, ends, counts = (first.call(operator.getitem, sent, number) for number in (0, 2, 3, 4))
    made, masks = _unmasked(found)
    if (
        chosen_of_each := _chosen(found)
    ) > found.experts:  # a token has more experts than a rank: as many rows as before
        more = _times(found.x, found.ranks * (chosen_of_each - found.experts), first)
        rows = first.call(_aten.constant_pad_nd.default, rows, [0, 0, 0, more])
        made = last.call(_aten.slice.Tensor, made, 0, 0, _times(found.x, found.ranks * found.experts, last))
    for old in _results(found.route, 0):
        old.replace_all_uses_with(rows)
    weights = _as(found.weights, torch.float32, last)
    sums = last.call(exchange.COMBINE, made, chosen, weights, notes, counts, *group)
    found.last.replace_all_uses_with(sums)
    for old in _ends(found.route):
        old.replace_all_uses_with(ends)
    _erase([*found.nodes, *_results(found.route, 0), *_results(found.route, 2), *masks])


def _chosen(found: _Found) -> int:
    number: int = found.chosen.meta["val"].shape[1]
    return number


def _as(node: Node, dtype: torch.dtype, write: Writer) -> Node:
    return node if node.meta["val"].dtype == dtype else write.call(_aten._to_copy.default, node, dtype=dtype)


def _times(x: Node, factor: int, write: Writer) -> Argument:
    """So many rows for each of x."""
    rows = x.meta["val"].shape[0]
    if isinstance(rows, int):
        return rows * factor
    return write.call(operator.mul, write.call(_aten.sym_size.int, x, 0), factor)


def _unmasked(found: _Found) -> tuple[Node, list[Node]]:
    """What experts made, where it is masked behind their rows, which are not read any more; and what masks it."""
    masked = _MASKED.match(found.rows)
    if isinstance(masked, FailedMatch) or masked.kwargs["ends"] not in _ends(found.route):
        return found.rows, []
    return masked.kwargs["made"], [*masked.nodes, *_ends(found.route)]


def _erase(nodes: Collection[Node]) -> None:
    """What nobody reads now; of what it reads itself nothing else."""
    for node in sorted(set(nodes), reverse=True):
        if not node.users:
            node.graph.erase_node(node)
