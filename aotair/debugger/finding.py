"""What a search for wrong numbers gives: the forms of a model that were called, and where the first wrong one began."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from .trail import Apart, Point


@dataclass(frozen=True)
class Rung:
    """One form of the model, called: the largest error of what it left behind against what the original did, that in
    units in the last place, and whether it is within the tolerance. `call` says from which states, and on what.
    `undone`: it is not within, and what comes after it puts that right."""

    form: str
    call: str
    error: float
    units: float
    within: bool
    undone: bool = False


@dataclass(frozen=True)
class Finding:
    """Where numbers go wrong. `kind` is what made them wrong: "export", "pass", "padding", "weights", "instruction",
    "memory", "kernel", "wait", "list" or "device"; `by` names it: the pass, the weight, the op. `calls` are those that
    may have done it, the likeliest first, each with the line of the model's code; `certain`: nothing else explains
    it. `apart`: the first wrong tensor beside the right one."""

    kind: str
    by: str
    what: str
    calls: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    certain: bool = False
    apart: Apart | None = None


@dataclass(frozen=True)
class Debugged:
    """`points`: the error of each call of the run that went wrong first, against the run before it."""

    name: str
    entry: str
    bucket: str
    device: str
    rungs: tuple[Rung, ...] = ()
    findings: tuple[Finding, ...] = ()
    points: Sequence[Point] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def is_right(self) -> bool:
        """Nothing wrong was found."""
        return not self.findings

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)
