"""Which differences fail a check, and do these? As `--fail-on memory:+1%,ops` says it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aotair_runtime.errors import AotairError
from aotair_runtime.memory.amounts import read_bytes

from .diff import Diff
from .facts import Amount

_GROWS = re.compile(r"\+(\d+(?:\.\d+)?)%|\+(\d+(?:\.\d+)?\s*[A-Za-z]*)")
# What fails where there is any.
_ANY: Mapping[str, Callable[[Diff], object]] = {
    "any": lambda found: not found.is_empty,
    "recipe": lambda found: found.recipe,
    "versions": lambda found: found.versions,
    "interface": lambda found: found.interface,
    "buckets": lambda found: found.buckets,
    "ops": lambda found: found.graphs,
    "weights": lambda found: found.weights,
    "plans": lambda found: found.plans,
}


def _amount(found: Diff, name: str) -> Amount:
    return next((amount for amount in found.amounts if amount.name == name), Amount(name, 0.0, 0.0))


def _time(found: Diff) -> Amount:
    return Amount("time", sum(row.before for row in found.replays), sum(row.after for row in found.replays))


# What fails where it grows by more than a limit.
_GROWN: Mapping[str, Callable[[Diff], Amount]] = {
    "memory": lambda found: _amount(found, "memory: peak"),
    "size": lambda found: _amount(found, "files"),
    "proof": lambda found: found.worst_proof,
    "time": _time,
}


@dataclass(frozen=True)
class Condition:
    """`name`, and by how much an amount may grow: a share of itself, or so much."""

    name: str
    share: float = 0.0
    more: float = 0.0

    def fails(self, found: Diff) -> str:
        """Why it fails; empty where it does not."""
        if self.name in _ANY:
            return f"{self.name}: they differ" if _ANY[self.name](found) else ""
        amount = _GROWN[self.name](found)
        if amount.after <= amount.before * (1 + self.share) + self.more:
            return ""
        allowed = f"+{self.share:.4g} of it" if self.share else f"+{self.more:g}"
        return f"{self.name}: from {amount.before:,.6g} to {amount.after:,.6g}, allowed was {allowed}"


def conditions(text: str, has_times: bool) -> list[Condition]:
    """The conditions of a text. Raises AotairError where one is none; `has_times`: times are measured."""
    return [_condition(part.strip(), has_times) for part in text.split(",")]


def _condition(text: str, has_times: bool) -> Condition:
    name, _, limit = text.partition(":")
    if name in _ANY and not limit:
        return Condition(name)
    if name == "time" and not has_times:
        raise AotairError("--fail-on time compares times", fix="measure them: --bench")
    match = _GROWS.fullmatch(limit) if limit else None
    if name in _GROWN and (match or not limit):
        if match is None:
            return Condition(name)
        if match[1]:
            return Condition(name, share=float(match[1]) / 100)
        more = _more(match[2], name)
        if more is not None:
            return Condition(name, more=more)
    raise AotairError(
        "--fail-on names no condition",
        expected=f"{', '.join(_ANY)}, or {', '.join(_GROWN)}, the last with or without a limit, as memory:+1% or "
        "memory:+10MiB; commas between them",
        got=text[:80],
    )


def _more(text: str, name: str) -> float | None:
    """Bytes, or, of what is none, a plain number."""
    try:
        return float(text) if name in ("proof", "time") else float(read_bytes(text))  # type: ignore[arg-type]  # a text
    except ValueError:
        return None
