"""Why a pattern does not match at a node that nearly does."""

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.fx.node import Node

from ..graph.show import target_name
from ..graph.user_line import source
from .matcher import MULTIPLE, CallFunction, Either, KeywordArg, PatternExpr
from .rule import Variant

_aten = torch.ops.aten
# They say how something lies, not what is computed: that these match is no sign of a near miss.
LIGHT = frozenset(
    {
        operator.getitem,
        _aten.view.default,
        _aten.reshape.default,
        _aten.expand.default,
        _aten.transpose.int,
        _aten.permute.default,
        _aten.unsqueeze.default,
        _aten.slice.Tensor,
        _aten.clone.default,
        _aten._to_copy.default,
        _aten._unsafe_view.default,
    }
)


def nearest(variants: Iterable[Variant], node: Node) -> str | None:
    """The first difference between the graph at `node` and the variant that is nearest to it.

    Near: at least half of the ops below the anchor that compute something are those of the pattern. Nothing where no
    variant is near.
    """
    walks = [_walked(variant.anchor, node) for variant in variants]
    near = [walk for walk in walks if walk.differences and walk.found and 2 * walk.found >= walk.wanted]
    if not near:
        return None
    best = max(near, key=lambda walk: (walk.found / walk.wanted, walk.found, -len(walk.differences)))
    return best.differences[0]


@dataclass
class _Walk:
    wanted: int = 0  # ops of the pattern that compute something
    found: int = 0
    differences: list[str] = field(default_factory=list)
    bound: dict[str, object] = field(default_factory=dict)

    def merge(self, other: "_Walk") -> None:
        self.wanted += other.wanted
        self.found += other.found
        self.differences += other.differences
        self.bound = other.bound


def _walked(pattern: CallFunction, node: Node) -> _Walk:
    """The walk from an anchor, which does not count itself; empty where the anchor itself is another."""
    walk = _Walk()
    if node.target in LIGHT and (len(node.args) != len(pattern.args) or _constants_differ(pattern, node)):
        return walk
    _arguments(pattern, node, walk)
    if not walk.wanted:
        walk.wanted = walk.found = 1
    return walk


def _constants_differ(pattern: CallFunction, node: Node) -> bool:
    pairs = zip(pattern.args, node.args)
    return any(not isinstance(want, (PatternExpr, list, tuple)) and want != got for want, got in pairs)


def _walk(pattern: object, node: object, walk: _Walk) -> None:
    if isinstance(pattern, Either):
        tries = []
        for choice in pattern.choices:
            one = _Walk(bound=dict(walk.bound))
            _walk(choice, node, one)
            tries.append(one)
        walk.merge(max(tries, key=lambda one: (one.found, -len(one.differences))))
    elif isinstance(pattern, KeywordArg):
        if pattern.name in walk.bound and walk.bound[pattern.name] is not node:
            walk.differences.append(
                f"{_text(node)} stands where the rule needs {_text(walk.bound[pattern.name])} again"
            )
        walk.bound[pattern.name] = node
    elif isinstance(pattern, CallFunction):
        _walk_call(pattern, node, walk)
    elif isinstance(pattern, (list, tuple)) and isinstance(node, (list, tuple)) and len(pattern) == len(node):
        for want, got in zip(pattern, node):
            _walk(want, got, walk)


def _walk_call(pattern: CallFunction, node: object, walk: _Walk) -> None:
    heavy = not LIGHT.issuperset(pattern.fns)
    if not isinstance(node, Node) or node.target not in pattern.fns:
        walk.wanted += _weight(pattern)
        walk.differences.append(f"{_text(node)} stands where the rule needs {_names(pattern)}")
        return
    walk.wanted += heavy
    walk.found += heavy
    if pattern.users is not MULTIPLE and len(node.users) != pattern.users:
        users = ", ".join(f"{user.name}{source(user)}" for user in node.users)
        walk.differences.append(f"{_text(node)} has {len(node.users)} uses, the rule needs {pattern.users}: {users}")
    _arguments(pattern, node, walk)


def _arguments(pattern: CallFunction, node: Node, walk: _Walk) -> None:
    if len(node.args) != len(pattern.args) or not set(pattern.kwargs) <= set(node.kwargs):
        walk.differences.append(f"{_text(node)} has other arguments than the rule takes: {_given(node)}")
    pairs = [*zip(pattern.args, node.args), *((want, node.kwargs.get(n)) for n, want in pattern.kwargs.items())]
    for want, got in pairs:
        if isinstance(want, (PatternExpr, list, tuple)):
            _walk(want, got, walk)
        elif want != got:
            walk.differences.append(f"{_text(node)} has {got} where the rule needs {want}")


def _weight(pattern: object) -> int:
    """How many ops of the pattern compute something."""
    if isinstance(pattern, Either):
        return min(map(_weight, pattern.choices))
    if isinstance(pattern, (list, tuple)):
        return sum(map(_weight, pattern))
    if not isinstance(pattern, CallFunction):
        return 0
    return (not LIGHT.issuperset(pattern.fns)) + sum(map(_weight, (*pattern.args, *pattern.kwargs.values())))


def _names(pattern: CallFunction) -> str:
    texts = (str(t) if isinstance(t, torch._ops.OpOverload) else getattr(t, "__name__", str(t)) for t in pattern.fns)
    return " or ".join(texts)


def _given(node: Node) -> str:
    given = [str(arg) for arg in node.args] + [f"{name}={value}" for name, value in node.kwargs.items()]
    return f"({', '.join(given)})"


def _text(value: object) -> str:
    return f"{value.name} ({target_name(value)}){source(value)}" if isinstance(value, Node) else repr(value)
