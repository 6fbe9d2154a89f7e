"""A replacement against what it replaces, on random numbers of the match's shapes and dtypes, before it is trusted."""

import operator
import weakref
from collections.abc import Sequence

import torch
from torch.fx.node import Node, map_arg

from ..errors import GraphError
from ..graph.show import target_name
from ..graph.verify import source
from .matcher import Match
from .rule import Replacement, Rule

# Units in the last place of the largest value by which floats may differ: a fused op rounds once where the ops apart
# round several times.
_ULPS = 4
_seen: weakref.WeakKeyDictionary[Rule, set] = weakref.WeakKeyDictionary()


def verify_numbers(rule: Rule, match: Match, outputs: Sequence[Node], planned: Replacement) -> None:
    """Raises GraphError, naming the rule, where its replacement gives other numbers than the ops it stands for.

    Floats may differ by 4 units in the last place of the largest value, integers by 1 in 1 % of the places. A rule is
    tried once for each combination of shapes, dtypes and constants.
    """
    inputs = _inputs(match, planned)
    key = (tuple(map(target_name, match.nodes)), tuple(map(_kind, inputs.values())), tuple(map(_kind, planned.args)))
    if key in _seen.setdefault(rule, set()):
        return
    generator = torch.Generator().manual_seed(0)
    values = {node: _random(node.meta["val"], generator) for node in inputs}
    try:
        with torch.no_grad():
            want = _apart(match, outputs, values)
            got = planned.module(*map_arg(tuple(planned.args), values.__getitem__))
    except Exception as error:
        raise GraphError(
            f"the fusion rule {rule.name} cannot be checked{source(outputs[0])}: {type(error).__name__}: {error}",
            fix=_fix(rule),
        ) from error
    got = got if isinstance(got, (tuple, list)) else [got]
    for position, (one, other) in enumerate(zip(want, got, strict=True)):
        _compare(rule, outputs[position], one, other)
    _seen[rule].add(key)


def _inputs(match: Match, planned: Replacement) -> dict[Node, None]:
    """The nodes that the match and its replacement read, in order."""
    inside = set(match.nodes)
    ordered = sorted(match.nodes)
    given = [arg for node in ordered for arg in node.all_input_nodes if arg not in inside]
    return dict.fromkeys([*given, *(arg for arg in planned.args if isinstance(arg, Node))])


def _apart(match: Match, outputs: Sequence[Node], values: dict[Node, object]) -> list:
    made = dict(values)
    for node in sorted(match.nodes):
        args, kwargs = map_arg((node.args, dict(node.kwargs)), made.__getitem__)
        made[node] = args[0][args[1]] if node.target is operator.getitem else node.target(*args, **kwargs)
    return [made[node] for node in outputs]


def _random(value: object, generator: torch.Generator) -> object:
    """A tensor with the strides of `value`: normal numbers, or zeros and ones, which are legal indices mostly."""
    if isinstance(value, (torch.SymInt, int)):
        return _hint(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_random(item, generator) for item in value)
    shape, strides = [_hint(size) for size in value.shape], [_hint(step) for step in value.stride()]
    count = 1 + sum((size - 1) * step for size, step in zip(shape, strides)) if all(shape) else 0
    if value.dtype.is_floating_point:
        made = torch.randn(count, generator=generator)
    else:
        made = torch.randint(0, 2, (count,), generator=generator)
    return made.to(value.dtype).as_strided(shape, strides)


def _hint(size: int | torch.SymInt) -> int:
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _kind(value: object) -> object:
    if isinstance(value, Node):
        return _kind(value.meta["val"])
    if isinstance(value, torch.Tensor):
        return (value.dtype, *map(_hint, value.shape), *map(_hint, value.stride()))
    return str(value)


def _compare(rule: Rule, node: Node, want: torch.Tensor, got: torch.Tensor) -> None:
    if want.dtype.is_floating_point:
        allowed = _ULPS * torch.finfo(want.dtype).eps * want.abs().max().double().item() if want.numel() else 0.0
        away = (want.double() - got.double()).abs()
        agrees = torch.equal(want.isfinite(), got.isfinite()) and not (away.nan_to_num() > allowed).any()
    else:
        away = (want.long() - got.long()).abs()
        agrees = away.numel() == 0 or (away.max() <= 1 and (away > 0).double().mean() <= 0.01)
    if not agrees:
        raise GraphError(
            f"the fusion rule {rule.name} changes numbers: {node.name} ({target_name(node)}){source(node)}",
            expected="the numbers of the ops it replaces",
            got=f"a difference of {away.nan_to_num(torch.inf).max().item():.3g} on random inputs",
            fix=_fix(rule),
        )


def _fix(rule: Rule) -> str:
    return f"mend the rule, or switch it off: config.experimental_config.disabled_fusion_rules: [{rule.name}]"
