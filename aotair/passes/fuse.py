"""A rule over a graph: every match that may be replaced is; every other, and every near miss, is explained."""

import operator
from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.fx.node import Node

from ..errors import GraphError
from ..fusion.kept import keep, kept_by
from ..fusion.matcher import CallFunction, FailedMatch, Match, graft, wanted
from ..fusion.misses import LIGHT, nearest
from ..fusion.rule import Kept, Replacement, Rule, Variant
from ..fusion.trust import numbers_differ
from ..graph.alias import root, written_roots
from ..graph.fake import relay
from ..graph.origin import copied
from ..graph.show import target_name
from ..graph.user_line import source
from ..ops.air import is_marker
from .composites import Group
from .edits import Edits
from .merge_duplicates import is_pure
from .streams import labels

_FEW = 8  # calls that are brought to where a replacement stands


def run(
    module: torch.fx.GraphModule,
    edits: Edits,
    rule: Rule,
    seen: set[object] | None = None,
    groups: Sequence[Group] | None = None,
    *,
    verify: bool = True,
) -> None:
    """`seen`, for a user's rule: receives the targets of all calls. What the rule needs and nothing ever called is
    said; not with `groups`, the composites that are apart meanwhile: there a rule that needs none of their calls waits
    until they are whole. `verify`: each replacement is compared with what it stands for, on random numbers."""
    graph = module.graph
    if seen is not None:
        seen.update(node.target for node in graph.nodes if node.op == "call_function")
    if groups is None and seen is not None:
        _say_missing(edits, rule, seen)
    elif groups is not None and not _needs(rule, {call[1] for group in groups for call in group.calls}):
        return
    for node in reversed(graph.nodes):
        if node.target is operator.getitem and not node.users:
            graph.erase_node(node)  # a result that nobody takes would count as a use
    anchors, fuser = rule.anchors(), _Fuser(graph, edits, rule, verify)
    for node in list(reversed(graph.nodes)):  # as it is now: what a replacement brings is no candidate
        if not node._erased and node.target in anchors:
            fuser.visit(node)
    for node, reason in fuser.left.items():
        edits.declined(node, reason)
    if fuser.relaid:
        relay(graph)


def _needs(rule: Rule, targets: set[object]) -> bool:
    return any(not targets.isdisjoint(fns) for variant in rule.variants for fns in wanted(variant.pattern))


def _say_missing(edits: Edits, rule: Rule, seen: set[object]) -> None:
    """For a rule of which no variant can match: the ops that its first one lacks."""
    lacking = [[fns for fns in wanted(variant.pattern) if seen.isdisjoint(fns)] for variant in rule.variants]
    if all(lacking):
        for fns in dict.fromkeys(map(tuple, lacking[0])):
            edits.missing(fns[0], "the rule needs it, and nothing in the graph calls it")


class _Surrounded(str):
    """Why the nodes of a match cannot be taken out: another variant, which leaves them, may have more to say."""


class _Fuser:
    """Goes from anchor to anchor. `left`: what computes something and stays, and why; `relaid`: whether results have
    other strides now."""

    def __init__(self, graph: torch.fx.Graph, edits: Edits, rule: Rule, verify: bool):
        self._edits, self._rule, self._verify, self._around = edits, rule, verify, _Surroundings(graph)
        self.left: dict[Node, str] = {}
        self.relaid = False

    def visit(self, node: Node) -> None:
        """Try the rule's variants at one anchor."""
        maker, reasons = _maker(node), []
        failed: list[Variant] = []
        for variant, match in self._rule.matches(node):
            if isinstance(match, FailedMatch):
                failed.append(variant)
                continue
            outputs = [found for found in match.output_nodes() if found is not None]
            planned = self._planned(variant, match, outputs)
            if isinstance(planned, Replacement):
                self.left.pop(maker, None)
                if self._edits.may(maker, f"fused: {self._rule.says}"):
                    made, relaid = _replace(match, outputs, planned)
                    self._around.adopt(made, outputs)
                    self.relaid |= relaid
                return
            reasons.append(planned)
        told = next((reason for reason in reasons if not isinstance(reason, _Surrounded)), None)
        reason = told or (reasons[0] if reasons else nearest(failed, node))
        if reason is not None:
            self.left.setdefault(maker, reason)

    def _planned(self, variant: Variant, match: Match, outputs: Sequence[Node]) -> Replacement | str:
        """A replacement that may be put in, or why there is none."""
        planned = self._kept(match) or self._around.refusal(match, outputs) or variant.plan(match, self._edits.target)
        if isinstance(planned, Kept):
            keep(self._rule.name, outputs, match.nodes)
        if not isinstance(planned, Replacement):
            return planned
        reason = _results_differ(outputs, planned) or self._around.too_late(planned.args, outputs)
        if reason is not None:
            return reason
        reason = self._around.unfit(planned)
        if reason is None and self._verify:
            reason = numbers_differ(self._rule, match, outputs, planned, self._edits.target.mesh)
        if reason is not None and not self._rule.ours:
            raise GraphError(
                f"the fusion rule {self._rule.name} changes numbers, or cannot be checked{source(outputs[0])}",
                expected="a replacement that gives what the ops it stands for give",
                got=reason,
                fix=f"mend it, or leave it out: config.experimental_config.disabled_fusion_rules: [{self._rule.name}]; "
                "where its inputs depend on one another, random ones prove nothing: with verify_rules: false the proof "
                "of the whole model remains",
            )
        return reason or planned

    def _kept(self, match: Match) -> str | None:
        """A user who said no to a rule of their own for these ops is not overruled by one of aotair's."""
        rule = kept_by(match.nodes) if self._rule.ours else None
        return None if rule is None else f"the extra_check of {rule} says no to fusing these ops here"


def _maker(node: Node) -> Node:
    """The call that computes what a node is a part of, or a view of: what is told of goes by it."""
    while node.target in LIGHT and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _replace(match: Match, outputs: Sequence[Node], planned: Replacement) -> tuple[list[Node], bool]:
    """Put the replacement in; gives its nodes, and whether a result has other strides than what it stands for."""
    before = [node.meta["val"] for node in outputs]
    origin = copied(outputs[0])
    after = [node.meta["val"] for node in _results(planned) if isinstance(node, Node)]
    made = list(graft(match, planned.module, planned.args))
    for node in made:
        node.meta |= origin
    return made, not all(statically_known_true(sym_eq(old.stride(), new.stride())) for old, new in zip(before, after))


def _results_differ(outputs: Sequence[Node], planned: Replacement) -> str | None:
    results = _results(planned)
    if len(results) != len(outputs):
        return f"the replacement gives {len(results)} results for {len(outputs)}"
    for old, new in zip(outputs, results):
        was, now = old.meta["val"], new.meta["val"] if isinstance(new, Node) else new
        if not isinstance(now, torch.Tensor):
            return f"the replacement gives {now!r} where {old.name} is a tensor"
        if was.dtype != now.dtype:
            return f"the replacement gives {_dtype(now)} where {old.name} is {_dtype(was)}"
        if was.dim() != now.dim() or not statically_known_true(sym_eq(was.shape, now.shape)):
            return f"the replacement gives the shape {list(now.shape)} where {old.name} has {list(was.shape)}"
    return None


def _results(planned: Replacement) -> Sequence[object]:
    """What the replacement returns: nodes, where its function returns nothing but tensors."""
    results = planned.module.graph.output_node().args[0]
    return results if isinstance(results, (tuple, list)) else [results]


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


class _Surroundings:
    """What lies around a match: streams, writes, and who else uses what. Kept for one run over a graph."""

    def __init__(self, graph: torch.fx.Graph):
        self._written = written_roots(graph)
        self._label = labels(graph)
        self._region: dict[Node, int] = {}
        self._position: dict[Node, int] = {}
        region = 0
        for number, node in enumerate(graph.nodes):
            region += _is_border(node)
            self._region[node], self._position[node] = region, number

    def refusal(self, match: Match, outputs: Sequence[Node]) -> _Surrounded | None:
        """Why the nodes of a match cannot be taken out, or nothing."""
        inside = set(match.nodes)
        reasons = (_unnamed_argument(match, node) or _used_outside(node, inside, outputs) for node in match.nodes)
        reason = next(filter(None, reasons), None) or self._order(match, outputs)
        return None if reason is None else _Surrounded(reason)

    def _order(self, match: Match, outputs: Sequence[Node]) -> str | None:
        if len({self._label.get(self._known(node), 0) for node in match.nodes}) > 1:
            return "its ops are on different streams"
        if len({self._region[self._known(node)] for node in match.nodes}) > 1:
            return "between its ops something is written, or an event is waited for"
        for node in outputs:
            if root(node) in self._written:
                return f"the memory of {node.name} is written elsewhere"
        return None

    def too_late(self, args: Sequence[object], outputs: Sequence[Node]) -> str | None:
        """The replacement stands where the first of the outputs is: all its arguments have to be there already. What
        little is made of inputs alone, as 1 + weight, is brought there."""
        first = min(outputs, key=lambda node: self._position[self._known(node)])
        for arg in args:
            if not isinstance(arg, Node) or not self._after(arg, first):
                continue
            made = self._of_inputs(arg, first, outputs)
            if made is None:
                return f"{arg.name} is computed after the first of its results"
            for node in made:
                if self._after(node, first):
                    first.prepend(node)
                    self._stands_with(node, first)
        return None

    def _after(self, node: Node, other: Node) -> bool:
        return self._position[self._known(node)] > self._position[self._known(other)]

    def _of_inputs(self, node: Node, other: Node, outputs: Sequence[Node]) -> list[Node] | None:
        """The calls that make a node of inputs that nobody writes into, in order; None where it is not so, or they are
        many, or on another stream than `other`, or use what the match makes."""
        found: dict[Node, None] = {}
        waiting = [node]
        while waiting:
            one = waiting.pop()
            if one.op == "placeholder" and one not in self._written:
                continue
            streams = {self._label.get(self._known(each), 0) for each in (one, other)}
            if one in outputs or not is_pure(one) or len(streams) > 1 or len(found) >= _FEW:
                return None
            found[one] = None
            waiting += one.all_input_nodes
        return sorted(found)

    def adopt(self, made: Sequence[Node], outputs: Sequence[Node]) -> None:
        """The nodes of a replacement stand where the first of the outputs stood."""
        first = min(outputs, key=lambda node: self._position[self._known(node)])
        for node in made:
            self._stands_with(node, first)

    def _stands_with(self, node: Node, other: Node) -> None:
        known = self._known(other)
        self._position[node], self._region[node] = self._position[known], self._region[known]
        if known in self._label:
            self._label[node] = self._label[known]

    @staticmethod
    def unfit(planned: Replacement) -> str | None:
        """What a replacement may not be, whatever its numbers are."""
        written = {node.name for node in written_roots(planned.module.graph) if node.op == "placeholder"}
        return f"the replacement writes into its argument {min(written)}" if written else None

    def _known(self, node: Node) -> Node:
        """A node that an earlier replacement made stands where its neighbour does."""
        while node not in self._position:
            node = node.next
        return node


def _is_border(node: Node) -> bool:
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return False
    return op._schema.is_mutable or (is_marker(op) and not op._schema.name.startswith("air::scope"))


def _unnamed_argument(match: Match, node: Node) -> str | None:
    """An argument by name that the node has and the pattern does not speak of: the replacement would lose it."""
    calls = [pattern for pattern in match.targets if isinstance(pattern, CallFunction)]
    named = [set(pattern.kwargs) for pattern in calls if match.ctx.pattern_to_node.get(pattern) is node]
    for name, value in node.kwargs.items():
        if named and not any(name in names for names in named):
            return f"{node.name} ({target_name(node)}) has {name}={value}, which the rule does not take"
    return None


def _used_outside(node: Node, inside: set[Node], outputs: Sequence[Node]) -> str | None:
    if node in outputs:
        return None
    for user in node.users:
        if user.target is operator.getitem and user not in inside:
            return f"the result {user.args[1]} of {node.name} is used too{source(next(iter(user.users)))}"
        if user not in inside:
            return f"{node.name} is also used by {user.name} ({target_name(user)}){source(user)}"
    return None
