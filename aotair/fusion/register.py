"""A user's own rules, registered as TorchAir has it."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from ..errors import GraphError
from .matcher import Match, PatternExpr, RuleOptions, Trace, fwd_only, torch_fwd_only
from .rule import Declined, Registered, Rule

_rules: list[Rule] = []
_of_function: dict[Callable[[], object], tuple[Rule, ...]] = {}


def _always(match: Match) -> bool:
    return True


def register_replacement(
    search_fn: Callable[..., object],
    replace_fn: Callable[..., object],
    example_inputs: Sequence[torch.Tensor],
    trace_fn: Trace = fwd_only,
    extra_check: Callable[[Match], bool] = _always,
    search_fn_pattern: PatternExpr | None = None,
    scalar_workaround: dict[str, float | int] | None = None,
    skip_duplicates: bool = False,
) -> None:
    """Replace what looks like `search_fn` by what `replace_fn` does, in every graph built from now on.

    Both take the same arguments and return as many tensors. `example_inputs` are tensors to trace them with; where a
    graph looks alike, `search_fn` is traced again with the graph's own shapes and dtypes. `extra_check` takes the match
    and says whether it may be replaced; where it says no, aotair's own rules do not join the ops of the match either.
    `search_fn_pattern`: the pattern written out, then `search_fn` gives the names
    of the arguments only. `scalar_workaround`: for each scalar argument a value that stands for it in the pattern.
    The signature and its meaning are those of `torchair.register_replacement`.

    The rule goes by the module and the qualified name of `search_fn`; further ones of that name get `#2`, `#3` …
    Registering a rule again does nothing. Raises GraphError where another rule has the same pattern, unless
    `skip_duplicates`, and where the functions cannot be made a rule.
    """
    name = _name(search_fn)
    # torch's own takes apart for Inductor what no graph here, nor TorchAir's, has apart
    traces = fwd_only if trace_fn is torch_fwd_only else trace_fn
    options = RuleOptions(traces, _named(name, extra_check), search_fn_pattern, scalar_workaround)
    try:
        variant = Registered(search_fn, replace_fn, _distinct(example_inputs), options)
    except Exception as error:
        raise GraphError(
            f"the fusion rule {name} cannot be registered: {type(error).__name__}: {error}",
            expected="two functions of the same arguments that return tensors computed from all of them",
        ) from error
    for rule in _rules:
        (known,) = rule.variants
        assert isinstance(known, Registered)  # nothing else is put there
        if known.looks != variant.looks:
            continue
        if skip_duplicates or known.does == variant.does:
            return
        raise GraphError(
            f"the fusion rule {name} has the pattern of {rule.name}",
            fix="remove one of them, or give skip_duplicates=True to leave out the second",
        )
    same = sum(rule.name.partition("#")[0] == name for rule in _rules)
    _rules.append(
        Rule(f"{name}#{same + 1}" if same else name, "a rule of your own", (variant,), devices=None, ours=False)
    )


def _distinct(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """An input given for several arguments is traced as one of them: a copy for each."""
    first = {id(value): place for place, value in reversed([*enumerate(inputs)])}
    return tuple(value if first[id(value)] == place else value.clone() for place, value in enumerate(inputs))


def _name(function: Callable[..., object]) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    return f"{inner.__module__}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"


def _named(name: str, check: Callable[[Match], bool]) -> Callable[[Match], bool]:
    """A user's check: its failure names the rule, and its no is told from a pattern that does not match."""

    def run(match: Match) -> bool:
        try:
            holds = check(match)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise GraphError(f"the extra_check of the fusion rule {name} failed: {text}") from error
        if not holds:
            raise Declined("its extra_check says no")
        return True

    return run


def registered() -> tuple[Rule, ...]:
    """The rules that were registered in this process, in order."""
    return tuple(_rules)


def rules_of(function: Callable[[], object]) -> tuple[Rule, ...]:
    """The rules that `function` registers, for those who name it and nobody else. It is called once a process."""
    if function not in _of_function:
        with _apart() as found:
            function()
        _of_function[function] = tuple(found)
    return _of_function[function]


@contextlib.contextmanager
def _apart() -> Iterator[list[Rule]]:
    """A list that receives what is registered in the meantime."""
    kept = list(_rules)
    found: list[Rule] = []
    _rules.clear()
    try:
        yield found
        found += _rules
    finally:
        _rules[:] = kept
