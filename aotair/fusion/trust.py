"""A replacement against what it replaces, on random numbers of the match's shapes and dtypes, before it is trusted."""

import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import Argument, Node, map_arg

from aotair_runtime.devices.groups import Group, named
from aotair_runtime.format.schema import Axis

from ..graph.show import target_name
from .alike import AlikeRanks
from .matcher import Match
from .rule import Replacement, Rule

# Units in the last place of the largest value by which floats may differ: a fused op rounds once where the ops apart
# round several times.
_ULPS = 4
_TOPK = torch.ops.aten.topk.default  # of a tensor, k, dimension, largest and sorted
_seen: weakref.WeakKeyDictionary[Rule, dict[object, str | None]] = weakref.WeakKeyDictionary()


def numbers_differ(
    rule: Rule, match: Match, outputs: Sequence[Node], planned: Replacement, mesh: Sequence[Axis] = ()
) -> str | None:
    """Why the replacement cannot be trusted to give the numbers of the ops it stands for, or nothing.

    Floats may differ by 4 units in the last place of the largest finite value, integers by 1 in 1 % of the places; what
    is not finite has to be the same. A rule is tried once for each combination of shapes, dtypes, constants and axes of
    the mesh, whose ranks all have the same numbers.
    """
    inputs, groups = _inputs(match, planned), {axis.name: AlikeRanks(axis.size) for axis in mesh}
    key = (tuple(map(target_name, match.nodes)), tuple(map(_kind, inputs)), tuple(map(_kind, planned.args)), *mesh)
    if key not in _seen.setdefault(rule, {}):
        try:
            _seen[rule][key] = _tried(match, outputs, planned, inputs, groups, indices=2)
        except Exception:  # the highest index may be beyond what is looked up
            try:
                _seen[rule][key] = _tried(match, outputs, planned, inputs, groups, indices=1)
            except Exception as error:
                _seen[rule][key] = f"it cannot be tried on random numbers: {type(error).__name__}: {error}"
    return _seen[rule][key]


def _tried(
    match: Match,
    outputs: Sequence[Node],
    planned: Replacement,
    inputs: Sequence[Node],
    groups: Mapping[str, Group],
    indices: int,
) -> str | None:
    generator = torch.Generator().manual_seed(0)
    values = {node: _random(node.meta["val"], generator, indices) for node in inputs}
    with torch.no_grad(), named(groups):
        want = _apart(match, outputs, values)
        got = planned.module(*map_arg(tuple(planned.args), values.__getitem__))
    got = got if isinstance(got, (tuple, list)) else [got]
    reasons = (_difference(node, one, other) for node, one, other in zip(outputs, want, got, strict=True))
    return next((reason for reason in reasons if reason is not None), None)


def _inputs(match: Match, planned: Replacement) -> list[Node]:
    """The nodes that the match and its replacement read, in order."""
    inside = set(match.nodes)
    ordered = sorted(match.nodes)
    given = [arg for node in ordered for arg in node.all_input_nodes if arg not in inside]
    return [*dict.fromkeys([*given, *(arg for arg in planned.args if isinstance(arg, Node))])]


def _apart(match: Match, outputs: Sequence[Node], values: Mapping[Node, Argument]) -> list[torch.Tensor]:
    made: dict[Node, Any] = dict(values)
    for node in sorted(match.nodes):
        arguments: Any = map_arg((node.args, dict(node.kwargs)), made.__getitem__)
        args, kwargs = arguments
        assert callable(node.target)  # graphs have no methods
        if node.target is _TOPK:
            args = (*args[:4], True)[: len(args)]  # where no order is asked for any is right, and a kernel's is this
        made[node] = args[0][args[1]] if node.target is operator.getitem else node.target(*args, **kwargs)
    return [made[node] for node in outputs]


def _random(value: object, generator: torch.Generator, indices: int) -> Argument:
    """A tensor with the strides of `value`: normal numbers, or integers below `indices`."""
    if isinstance(value, (torch.SymInt, int)):
        return _hint(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_random(item, generator, indices) for item in value)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"there are no random numbers for {value!r}")
    shape, strides = [_hint(size) for size in value.shape], [_hint(step) for step in value.stride()]
    count = 1 + sum((size - 1) * step for size, step in zip(shape, strides)) if all(shape) else 0
    if value.dtype.is_floating_point:
        made = torch.randn(count, generator=generator)
    else:
        made = torch.randint(0, 2 if value.dtype is torch.bool else indices, (count,), generator=generator)
    return made.to(value.dtype).as_strided(shape, strides)


def _hint(size: int | torch.SymInt) -> int:
    hint: int = size.node.hint if isinstance(size, torch.SymInt) else size
    return hint


def _kind(value: object) -> object:
    if isinstance(value, Node):
        return _kind(value.meta["val"])
    if isinstance(value, torch.Tensor):
        return (value.dtype, *map(_hint, value.shape), *map(_hint, value.stride()))
    return str(value)


def _difference(node: Node, want: torch.Tensor, got: torch.Tensor) -> str | None:
    a, b = want.double(), got.double()
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()) or not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
        return f"on random numbers {node.name} is not finite in other places"
    a, b = a[finite], b[finite]
    if not a.numel():
        return None
    away = (a - b).abs()
    if want.dtype.is_floating_point:
        wrong = away.max() > _ULPS * torch.finfo(want.dtype).eps * a.abs().max()
    else:
        wrong = away.max() > 1 or (away > 0).double().mean() > 0.01
    return f"on random numbers {node.name} differs by {away.max().item():.3g}" if wrong else None
