"""Patterns over graphs: `torch._inductor.pattern_matcher`, with choices, and traces in the form that export gives.

The only file that knows that library.
"""

import contextlib
import operator
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _special_op_to_preserve_cia
from torch._guards import detect_fake_mode
from torch._inductor.fx_passes.post_grad import remove_noop_ops
from torch._inductor.pattern_matcher import (
    MULTIPLE,
    CallFunction,
    FailedMatch,
    Ignored,
    KeywordArg,
    Match,
    MatchContext,
    MultiOutputPattern,
    PatternExpr,
    PatternMatcherPass,
    ReplacementPatternEntry,
)
from torch._inductor.pattern_matcher import fwd_only as torch_fwd_only
from torch._inductor.pattern_matcher import register_replacement as _register
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import Argument, Node, Target
from torch.utils._ordered_set import OrderedSet

from ..graph.kept_whole import KEPT_WHOLE

__all__ = [
    "MULTIPLE",
    "CallFunction",
    "Either",
    "FailedMatch",
    "Ignored",
    "KeywordArg",
    "Match",
    "MultiOutputPattern",
    "PatternExpr",
    "ReplacementPatternEntry",
    "RuleOptions",
    "Trace",
    "arguments",
    "call",
    "commutes",
    "entry_of",
    "fwd_only",
    "graft",
    "part",
    "torch_fwd_only",
    "wanted",
]

Trace = Callable[..., torch.fx.GraphModule]  # of a function and its example inputs


class Either(PatternExpr):
    """The first of several patterns that matches."""

    def __init__(self, *choices: PatternExpr):
        self.choices = choices

    def _match(self, node: Node, ctx: MatchContext) -> Match | FailedMatch:
        before = dict(ctx.pattern_to_node)
        found: Match | FailedMatch = FailedMatch("no choice")
        for choice in self.choices:
            try:
                found = ctx.match(choice, node)
            except FailedMatch as error:
                found = error
            if found:
                return found
            ctx.pattern_to_node = dict(before)
        return found

    def find_anchor_nodes(self, ctx: MatchContext, searched: OrderedSet[Node]) -> Generator[Node | None, None, None]:
        for choice in self.choices:
            yield from choice.find_anchor_nodes(ctx, searched)


def call(op: Target | Sequence[Target], *args: object, **kwargs: object) -> CallFunction:
    """A call of `op` (or of one of several), used any number of times: who else uses it is checked for all rules."""
    return CallFunction(op, *args, _users=MULTIPLE, **kwargs)


def commutes(op: torch._ops.OpOverload, left: object, right: object) -> Either:
    """A call of a binary op with its arguments in either order."""
    return Either(call(op, left, right), call(op, right, left))


def part(pattern: PatternExpr, number: int) -> CallFunction:
    """One of several results."""
    return call(operator.getitem, pattern, number)


@torch.no_grad()
def fwd_only(
    function: Callable[..., object],
    args: Sequence[object],
    *,
    run_functional_passes: bool = True,
    get_decomp_fn: object = None,
) -> torch.fx.GraphModule:
    """The graph of `function(*args)` as export would give it: the same ops stay whole, and no-ops are gone.

    The default `trace_fn` of `register_replacement`. `get_decomp_fn` is accepted and ignored: the table of the line is
    the one that makes patterns look like graphs.
    """
    mode = detect_fake_mode(args) or contextlib.nullcontext()  # so that a factory makes fake tensors, too
    with mode, _override_composite_implicit_decomp(_kept_whole()), enable_python_dispatcher():
        module = make_fx(function, tracing_mode="real")(*args)
    if run_functional_passes:
        remove_noop_ops(module.graph)
        module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _kept_whole() -> dict[torch._ops.OpOverload, Callable[..., object]]:
    packets = [getattr(torch.ops.aten, name) for name in sorted(KEPT_WHOLE)]
    ops = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    composite = [op for op in ops if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _COMPOSITE)]
    return dict.fromkeys(composite, _special_op_to_preserve_cia)


_COMPOSITE = "CompositeImplicitAutograd"


@dataclass(frozen=True)
class RuleOptions:
    """How torch is to make a pattern of two functions; `register_replacement` says what each is."""

    trace_fn: Trace
    extra_check: Callable[[Match], bool]
    search_fn_pattern: PatternExpr | None = None
    scalar_workaround: dict[str, float | int] | None = None


def entry_of(
    search_fn: Callable[..., object],
    replace_fn: Callable[..., object],
    example_inputs: tuple[torch.Tensor, ...],
    options: RuleOptions,
) -> tuple[ReplacementPatternEntry, str]:
    """What torch makes of a rule: an entry with `pattern`, `extra_check` and `normalize_args`; and a text that is equal
    for equal patterns, constants included."""
    rules = PatternMatcherPass()
    _register(
        search_fn,
        replace_fn,
        example_inputs,
        options.trace_fn,
        rules,
        options.extra_check,
        scalar_workaround=options.scalar_workaround,
        search_fn_pattern=options.search_fn_pattern,
    )
    entry = next(iter(rules.patterns.values()))[0]
    assert isinstance(entry, ReplacementPatternEntry)  # there is no other kind of rule with a replacement
    return entry, str(dict(rules.seen_patterns))


def arguments(pattern: object) -> set[str]:
    """The names that a pattern binds."""
    if isinstance(pattern, KeywordArg):
        return {pattern.name}
    inner = getattr(pattern, "outputs", None) or getattr(pattern, "flat_args_kwargs", ((), None))[0]
    return set().union(*map(arguments, inner)) if inner else set()


def wanted(pattern: object) -> Iterator[Sequence[Target]]:
    """For each call that a pattern has to find: the targets that it may be of."""
    if isinstance(pattern, (CallFunction, MultiOutputPattern)):
        if isinstance(pattern, CallFunction):
            yield pattern.fns
        inner = pattern.outputs if isinstance(pattern, MultiOutputPattern) else pattern.flat_args_kwargs[0]
        for one in inner:
            yield from wanted(one)


def graft(match: Match, replacement: torch.fx.GraphModule, args: Sequence[Argument]) -> list[Node]:
    """Put `replacement`, called with `args`, into the graph at the first of the match's outputs; the new nodes."""
    given = cast(Sequence[Node], args)  # constants too, which torch's own type leaves out
    there = set(match.graph.nodes)
    ReplacementPatternEntry.replace_with_graph(match, match.graph, replacement, given)
    return [node for node in match.graph.nodes if node not in there]  # not every torch gives them back
