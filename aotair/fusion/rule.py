"""What a fusion rule is: patterns, and what stands in their place where the rule's conditions hold."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.node import Argument, Node, Target, map_arg

from ..errors import GraphError
from ..ops.naming import host_as_npu
from ..target.target import Target as Device
from .matcher import (
    CallFunction,
    FailedMatch,
    Match,
    MultiOutputPattern,
    PatternExpr,
    ReplacementPatternEntry,
    RuleOptions,
    arguments,
    entry_of,
    fwd_only,
)

Results = tuple[torch.Tensor, ...]  # of a function that stands for a match


class Declined(Exception):
    """Raised by a check that cannot go on: its text says why the match is left alone."""


class Kept(str):
    """Why a user's own check says no to a match: aotair's own rules do not join its ops either."""


@dataclass(frozen=True)
class Replacement:
    """A graph to put in the place of a match, and the nodes and constants that it is called with."""

    module: torch.fx.GraphModule
    args: list[Argument]


class Variant:
    """One pattern of a rule. `plan` gives the Replacement of a match for a device, or says why there is none."""

    pattern: PatternExpr

    @property
    def outputs(self) -> list[PatternExpr]:
        """What the match makes for others, in the order of the replacement's results."""
        several = self.pattern.outputs if isinstance(self.pattern, MultiOutputPattern) else [self.pattern]
        return [output for output in several if output is not None]

    @property
    def anchor(self) -> CallFunction:
        """The first of them: a match is looked for at the nodes that it may be."""
        first = self.outputs[0]
        assert isinstance(first, CallFunction)  # a rule that is no such is not registered
        return first

    def plan(self, match: Match, device: Device) -> Replacement | str:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Fused(Variant):
    """A pattern written out. `check` says why a match may not be replaced, or nothing; `replace` gives the results.

    Both take arguments by the names of the pattern's KeywordArgs, as many as they want: `check` gets nodes and
    constants, `replace` tensors and constants. A name that the pattern does not bind keeps its default. `named`: parts
    of the pattern whose nodes `check` wants, too. What the program is built for it may have as `device`.
    """

    pattern: PatternExpr
    replace: Callable[..., Results]
    check: Callable[..., str | None]
    named: Mapping[str, PatternExpr] = field(default_factory=dict)

    def plan(self, match: Match, device: Device) -> Replacement | str:
        found = {name: match.ctx.pattern_to_node[pattern] for name, pattern in self.named.items()}
        try:
            reason = self.check(**_wanted(self.check, {**match.kwargs, **found, "device": device}))
        except Declined as error:
            return str(error)
        if reason is not None:
            return reason
        given = _wanted(self.replace, match.kwargs)
        values = map_arg(tuple(given.values()), lambda node: node.meta["val"])
        return Replacement(fwd_only(lambda *args: self.replace(**dict(zip(given, args))), values), [*given.values()])


def _wanted(function: Callable[..., object], given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in inspect.signature(function).parameters if name in given}


@dataclass(frozen=True, eq=False)
class Registered(Variant):
    """A pattern that torch makes from a user's functions, with torch's own check of shapes."""

    search_fn: Callable[..., object]
    replace_fn: Callable[..., object]
    example_inputs: tuple[torch.Tensor, ...]
    options: RuleOptions
    pattern: PatternExpr = field(init=False)
    entry: ReplacementPatternEntry = field(init=False)
    looks: str = field(init=False)  # the pattern as text, and the replacement: equal for equal ones
    does: str = field(init=False)

    def __post_init__(self) -> None:
        with host_as_npu():
            entry, looks, replacement = self._traced()
        made = {"pattern": entry.pattern, "entry": entry, "looks": looks, "does": replacement.code}
        for name, value in made.items():
            object.__setattr__(self, name, value)
        if replacement.graph.find_nodes(op="get_attr"):
            raise ValueError("replace_fn holds a tensor of its own: make it an argument")
        if not all(isinstance(output, CallFunction) for output in self.outputs):
            raise ValueError("search_fn returns one of its arguments")
        bound = arguments(self.pattern)
        for name in inspect.signature(self.search_fn).parameters:
            if not any(one == name or one.startswith(f"{name}_") for one in bound):
                raise ValueError(f"search_fn does not use its argument {name!r}")

    def _traced(self) -> tuple[ReplacementPatternEntry, str, torch.fx.GraphModule]:
        entry, looks = entry_of(self.search_fn, self.replace_fn, self.example_inputs, self.options)
        scalars, examples = self.options.scalar_workaround or {}, iter(self.example_inputs)
        names = inspect.signature(self.search_fn).parameters
        given = [scalars[name] if name in scalars else next(examples) for name in names]
        return entry, looks, fwd_only(self.replace_fn, given)

    def plan(self, match: Match, device: Device) -> Replacement | str:
        try:
            with host_as_npu():
                holds = self.entry.extra_check(match)
        except GraphError:
            raise
        except Declined as error:
            return Kept(error)
        except Exception as error:  # of search_fn or replace_fn, which are traced with the match's shapes
            return f"its functions cannot be traced with these shapes and dtypes: {type(error).__name__}: {error}"
        if not holds:
            return "a constant, a shape or a dtype differs from what search_fn gives"
        assert match.replacement_graph is not None  # torch's check made it
        return Replacement(match.replacement_graph, self.entry.normalize_args(*match.args, **match.kwargs))


@dataclass(frozen=True, eq=False)
class Rule:
    """`says`: what becomes what, in one line. `devices`: the kinds of target it is for; None: all.
    `lifts`: it makes npu ops of plain ones, which other rules look for.
    `ours`: where its numbers cannot be trusted it declines; a user's rule is refused."""

    name: str
    says: str
    variants: tuple[Variant, ...]
    devices: frozenset[str] | None = frozenset({"npu"})
    lifts: bool = False
    ours: bool = True

    def matches(self, node: Node) -> Iterator[tuple[Variant, Match | FailedMatch]]:
        """What each variant has to say about `node` as the anchor of a match."""
        for variant in self.variants:
            if node.target in variant.anchor.fns:
                yield variant, variant.pattern.match(node)

    def anchors(self) -> set[Target]:
        """The targets of the nodes at which a match may be found."""
        return {target for variant in self.variants for target in variant.anchor.fns}
