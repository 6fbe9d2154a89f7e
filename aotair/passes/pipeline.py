"""The pipeline: every pass in order, with the reason for its place. This list is the documentation."""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from .. import fusion
from ..errors import GraphError
from ..recipe.config import CompilerConfig
from ..target.target import Target
from . import (
    canonicalise,
    channels_last,
    composites,
    custom,
    exchange_tokens,
    fold_constants,
    fold_norms,
    fold_tables,
    fuse,
    lower_precision,
    merge_copies,
    merge_duplicates,
    merge_products,
    recover_view_inplace,
    reinplace_inplaceable_ops,
    reinplace_input_mutated_ops,
    remove_cat_ops,
    remove_dead_code,
    remove_noop_ops,
    remove_self_copies,
    scatter_sums,
    streams,
    weight_nz,
)
from .edits import Edits
from .observer import Observer

log = logging.getLogger("aotair")


@dataclass(frozen=True)
class Pass:
    """A graph-to-graph step: `run(module, edits, **options(config))` changes the graph in place, and asks `edits` for
    leave for each rewrite. A pass sees its own options, and not the config."""

    name: str
    run: Callable[..., None]
    enabled: Callable[[CompilerConfig], bool] = lambda config: True
    options: Callable[[CompilerConfig], Mapping[str, object]] = lambda config: {}


def _custom(option: str, *, reshapes: bool) -> Pass:
    """A user's own pass, whose contract with TorchAir is to be given the config."""
    return Pass(
        option,
        functools.partial(custom.run, reshapes=reshapes),
        enabled=lambda config: getattr(config, option) is not None,
        options=lambda config: {
            "function": getattr(config, option),
            "config": config,
            "form": config.experimental_config.composites,
        },
    )


def _fuse(rule: fusion.Rule, seen: set[object] | None = None, groups: Sequence[composites.Group] | None = None) -> Pass:
    return Pass(
        rule.name,
        functools.partial(fuse.run, rule=rule, seen=seen, groups=groups),
        options=lambda config: {"verify": config.experimental_config.verify_rules},
    )


def _folds_norms(config: CompilerConfig) -> bool:
    return config.experimental_config.fold_norms and config.experimental_config.fold_constants


def _merges_products(config: CompilerConfig) -> bool:
    return config.experimental_config.merge_products and config.experimental_config.fold_constants


def _lowers_precision(config: CompilerConfig) -> bool:
    return config.experimental_config.precision == "bf16"


# Run until none of them finds anything: a copy that one removes may have been what kept another from a rewrite.
REINPLACE = (
    # Before the next: it turns chains of writes to an intermediate into one, which the next can move into an input.
    Pass(
        "reinplace_inplaceable_ops",
        reinplace_inplaceable_ops.run,
        lambda config: not config.debug.aclgraph.disable_reinplace_inplaceable_ops_pass,
    ),
    Pass(
        "reinplace_input_mutated_ops",
        reinplace_input_mutated_ops.run,
        lambda config: not config.debug.aclgraph.disable_reinplace_input_mutated_ops_pass,
    ),
    # The passes before leave them behind.
    Pass("remove_self_copies", remove_self_copies.run),
    # After the pass that turns scatters into copies into views.
    Pass(
        "merge_copies",
        merge_copies.run,
        lambda config: not config.debug.aclgraph.disable_reinplace_input_mutated_ops_pass,
    ),
    # Again, last: views and copies whose only users are gone.
    Pass("remove_dead_code", remove_dead_code.run),
)

PREPARE = (
    # First, as TorchAir has it: it sees the graph as export made it.
    _custom("post_grad_custom_pre_pass", reshapes=False),
    # Export leaves assertions about shapes that each bucket satisfies by construction; they would count as users.
    Pass("remove_dead_code", remove_dead_code.run),
    # Before anything that looks for patterns: a no-op between two nodes hides them from each other.
    Pass("remove_noop_ops", remove_noop_ops.run, lambda config: config.experimental_config.remove_noop_ops),
    # Before anything that counts users: a write through a view is one node instead of four.
    Pass("recover_view_inplace", recover_view_inplace.run),
    # Before anything that compares calls.
    Pass("canonicalise", canonicalise.run),
    # Before fusion: what is computed twice has two users where a rule wants to see one.
    Pass("merge_duplicates", merge_duplicates.run, lambda config: config.experimental_config.merge_duplicates),
    # When what reads a sum counts once; before fusion, which looks for products beside the sums that are left whole.
    Pass("scatter_sums", scatter_sums.run),
)

# When what reads a sum counts once; before fusion, which takes what puts tokens in the order of their experts.
EXCHANGE = Pass("exchange_tokens", exchange_tokens.run)

FINISH = (
    # What replacements computed for each match, copies of what lies otherwise now, and what is left unused.
    Pass("merge_duplicates", merge_duplicates.run, lambda config: config.experimental_config.merge_duplicates),
    Pass("remove_noop_ops", remove_noop_ops.run, lambda config: config.experimental_config.remove_noop_ops),
    Pass("remove_dead_code", remove_dead_code.run),
    # After all that matches patterns, before what changes where results lie.
    _custom("post_grad_custom_post_pass", reshapes=True),
    # After all that matches patterns, which look for norms and products as the model has them, and when nothing that is
    # computed twice or in vain counts as a reader. Before the next, which stores what this writes; not without it.
    Pass("fold_norms", fold_norms.run, _folds_norms),
    # After all that matches patterns, and after norms became part of weights, which are so rounded once. Before the
    # next, which stores the rounded weights; not without it.
    Pass("lower_precision", lower_precision.run, _lowers_precision),
    # After all that matches patterns, which may look for views of images; before what makes ops write over one another.
    Pass("channels_last", channels_last.run, lambda config: config.experimental_config.channels_last),
    # After all that matches patterns, and before the next, which stores the weights that this makes; not without it.
    Pass("merge_products", merge_products.run, _merges_products),
    # After all that matches patterns, which look for ops on weights; before what makes ops write over one another.
    Pass("fold_constants", fold_constants.run, lambda config: config.experimental_config.fold_constants),
    # After the last pass that may open a scope. Reinplacing asks which streams there are, so it comes later.
    Pass("streams", streams.run, options=lambda config: {"hazards": config.experimental_config.stream_hazards}),
    *REINPLACE,
)

# For the graph of one bucket, where sizes are numbers.
BUCKET_PIPELINE = (
    # First: of what it takes out of the graph the next need know nothing.
    Pass("fold_tables", fold_tables.run, lambda config: config.experimental_config.fold_constants),
    # Needs to know where each part of a result begins, in bytes.
    Pass("remove_cat_ops", remove_cat_ops.run, lambda config: config.debug.aclgraph.remove_cat_ops),
    # Last: it marks the calls as they are now.
    Pass("weight_nz", weight_nz.run, lambda config: config.experimental_config.weight_nz),
)


def pipeline(config: CompilerConfig, target: Target, rules: Sequence[fusion.Rule] = ()) -> tuple[Pass, ...]:
    """Every pass for the symbolic graph in order; `rules` are a recipe's own, beside aotair's and those registered."""
    exchanges = (EXCHANGE,) if target.kind == "npu" and target.mesh else ()
    return (*PREPARE, *exchanges, *_fusion(config, target, rules), *FINISH)


def _fusion(config: CompilerConfig, target: Target, rules: Sequence[fusion.Rule]) -> Iterator[Pass]:
    """A pass for each rule. A user's rules come first, as in TorchAir: where composites are apart, where they are
    whole, and again for what each lifting rule made: they take it, or keep it as it is, before another rule does."""
    own = (*rules, *fusion.registered())
    options = config.experimental_config
    known = {rule.name for rule in (*own, *fusion.RULES)}
    for name in options.disabled_fusion_rules:
        if name not in known:
            raise GraphError(f"there is no fusion rule {name!r} to disable", expected=", ".join(sorted(known)))
    if not options.pattern_fusion_pass:
        return
    enabled = [rule for rule in own if rule.name not in options.disabled_fusion_rules]
    seen: set[object] = set()
    theirs = [_fuse(rule, seen=seen) for rule in enabled]
    here = [rule for rule in fusion.RULES if rule.devices is None or target.kind in rule.devices]
    here = [rule for rule in here if rule.name not in options.disabled_fusion_rules]
    if theirs and options.composites != "whole":
        yield from _apart(enabled, seen)
    yield from theirs
    for rule in (rule for rule in here if rule.lifts):
        yield _fuse(rule)
        yield from theirs
    yield from (_fuse(rule) for rule in here if not rule.lifts)


def _apart(rules: Sequence[fusion.Rule], seen: set[object]) -> Iterator[Pass]:
    """Rules over the calls that composites stand for. Those that fire leave these apart; all others are whole after."""
    groups: list[composites.Group] = []

    def take_apart(module: torch.fx.GraphModule, edits: Edits) -> None:
        groups[:] = composites.expand(module.graph, plain=True)

    def put_together(module: torch.fx.GraphModule, edits: Edits) -> None:
        composites.fold(module.graph, groups)

    yield Pass("take_composites_apart", take_apart)
    for rule in rules:
        yield _fuse(rule, seen=seen, groups=groups)
    yield Pass("put_composites_together", put_together)


def apply_to_bucket(
    module: torch.fx.GraphModule,
    config: CompilerConfig,
    target: Target,
    observer: Observer | None = None,
    stop_after: str | None = None,
) -> None:
    """Run the passes that need concrete sizes, in place; none where `stop_after` names one that comes before them."""
    observer, last = observer or Observer(target), (stop_after or "").partition(":")[0]
    if last and last not in [step.name for step in BUCKET_PIPELINE]:
        return
    for step in BUCKET_PIPELINE:
        _run(step, module, config, observer)
        if step.name == last:
            return


def apply(
    module: torch.fx.GraphModule,
    config: CompilerConfig,
    observer: Observer,
    stop_after: str | None = None,
    rules: Sequence[fusion.Rule] = (),
) -> None:
    """Run the pipeline over `module`, in place. `stop_after` names the last pass to run, after its last run, or as
    `NAME:2` after its second."""
    _run_all(module, config, observer, stop_after, rules)
    module.recompile()  # once: nobody runs it between two passes


def _run_all(
    module: torch.fx.GraphModule,
    config: CompilerConfig,
    observer: Observer,
    stop_after: str | None,
    rules: Sequence[fusion.Rule],
) -> None:
    steps = pipeline(config, observer.target, rules)
    stop = _Stop(stop_after, steps)
    counts = {}
    for step in steps:
        counts[step] = _run(step, module, config, observer)
        if stop.after(step):
            return
    found = sum(counts[step] for step in REINPLACE[1:])
    while found:
        found = 0
        for step in REINPLACE:
            found += _run(step, module, config, observer)
            if stop.after(step):
                return
    stop.end()


class _Stop:
    """Counts the runs of a pass over one graph, up to the one to stop after."""

    def __init__(self, text: str | None, steps: Sequence[Pass]):
        self._name, _, number = (text or "").partition(":")
        self._runs, self._last = 0, int(number) if number.isdecimal() else None
        if text is None:
            return
        names = [step.name for step in (*steps, *BUCKET_PIPELINE)]
        if self._name not in names or text not in (self._name, f"{self._name}:{self._last}"):
            raise GraphError(f"there is no pass {text!r} to stop after", expected=", ".join(dict.fromkeys(names)))
        repeated, most = self._name in [step.name for step in REINPLACE], names.count(self._name)
        if self._last == 0 or ((self._last or 0) > most and not repeated):
            raise GraphError(f"the pass {self._name} has no run {self._last}", expected=f"1 to {most}")
        # What is repeated until nothing is found: its last run is followed by runs that find nothing.
        if self._last is None and not repeated:
            self._last = most

    def after(self, step: Pass) -> bool:
        """Whether this run of the pass was the last that is wanted."""
        self._runs += step.name == self._name
        return step.name == self._name and self._runs == self._last

    def end(self) -> None:
        """All passes have run."""
        if self._runs and self._last is not None:
            log.warning("the pass %s ran %d times, not %d: no pass was left out", self._name, self._runs, self._last)


def _run(step: Pass, module: torch.fx.GraphModule, config: CompilerConfig, observer: Observer) -> int:
    """Run one pass where it is enabled; gives its number of rewrites."""
    if not step.enabled(config):
        return 0
    with observer.watch(step.name, module) as edits:
        step.run(module, edits, **step.options(config))
        module.graph.lint()
    return edits.count
