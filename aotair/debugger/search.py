"""What is looked for, and what was found so far."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from aotair_runtime.format.schema import Tolerance

from ..prove.apart import apart
from ..prove.runs import Run
from .finding import Debugged, Finding, Rung
from .ladder import as_far_as
from .original import Named
from .trail import Point

Heard = Callable[[Rung], None]


@dataclass(frozen=True)
class Asked:
    """What to look at: an entry point and a bucket by name (None: the first, the smallest that holds the inputs),
    inputs and states of a call, a device (None: that of the artifact, where it is there, beside the host)."""

    entry: str | None = None
    bucket: str | None = None
    inputs: Mapping[str, torch.Tensor] | None = None
    states: Mapping[str, torch.Tensor] | None = None
    device: str | None = None


class Search:
    """What was found so far."""

    def __init__(self, heard: Heard):
        self._heard = heard
        self.rungs: list[Rung] = []
        self.findings: list[Finding] = []
        self.points: tuple[Point, ...] = ()
        self.notes: list[str] = []

    def rung(self, rung: Rung) -> None:
        """A form was called."""
        self.rungs.append(rung)
        self._heard(rung)

    def found(self, finding: Finding, seen: Sequence[Point] = ()) -> None:
        """Something is wrong."""
        self.findings.append(finding)
        self.points = self.points or tuple(seen)

    def result(self, name: str, entry: str, bucket: str, device: str) -> Debugged:
        return Debugged(
            name, entry, bucket, device, tuple(self.rungs), tuple(self.findings), self.points, tuple(self.notes)
        )

    def compare(self, form: str, one: Named, want: Run, got: Run, tolerance: Tolerance) -> bool:
        """A form was called: whether what it left behind is within the tolerance."""
        found = apart(want, as_far_as(got, want), tolerance)
        self.rung(Rung(form, one.words, found.error, found.units, not found.wrong))
        return not found.wrong
