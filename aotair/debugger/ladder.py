"""The forms that a model takes in a build, each called like the original: export, after each pass, a bucket's graph."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from aotair_runtime.format.schema import Tolerance

from ..export.exported import Exported
from ..prove.apart import apart
from ..prove.runs import Run
from .changed import culprits
from .finding import Finding, Rung
from .graphs import observed, placeholder_values
from .original import Named, Reference
from .trail import Point, Trail, points


@dataclass(frozen=True)
class Form:
    """A graph, and the stage that made it: `export`, a pass, `specialise`."""

    stage: str
    graph: torch.fx.Graph


@dataclass(frozen=True)
class Broken:
    """The first form that does not do what the original does."""

    finding: Finding
    points: tuple[Point, ...]


class Ladder:
    """Climbs from the original towards the bucket's graph, up to the first form that is wrong."""

    def __init__(self, reference: Reference, exported: Exported, tolerance: Tolerance):
        self._reference, self._exported, self._tolerance = reference, exported, tolerance
        self._names = reference.names

    def climb(
        self,
        forms: Sequence[Form],
        calls: Sequence[Named],
        wanted: Mapping[str, Run],
        heard: Callable[[Rung], None],
        start: int = 0,
    ) -> Broken | None:
        """What is wrong first, from the form number `start` on, if anything is; `wanted` is what the original left
        behind of each call, by its words."""
        for number in range(start, len(forms)):
            for one in calls:
                rung = self._rung(forms[number], one, wanted[one.words])
                heard(rung)
                if not rung.within:
                    return self._explained(forms, number, one)
        return None

    def trail(self, form: Form, one: Named) -> tuple[Run, Trail]:
        """What a graph leaves behind of a call, and what each of its calls got and left."""
        values = self._values(form, one)
        outputs, trail = observed(form.graph, values, {*self._exported.states, *self._exported.inputs.values()})
        lasting = [values[self._exported.inputs[name]] for name in self._reference.mutated]
        places = {item.name: placeholder for placeholder, item in self._exported.states.items()}
        lasting += [values[places[name]] for name in self._reference.states]
        return Run(self._names, [*outputs, *lasting]), trail

    def _rung(self, form: Form, one: Named, want: Run) -> Rung:
        got, _ = self.trail(form, one)
        found = apart(want, got, self._tolerance)
        return Rung(form.stage, one.words, found.error, found.units, not found.wrong)

    def _values(self, form: Form, one: Named) -> dict[str, torch.Tensor]:
        states = {**self._reference.states, **one.call.states}
        return placeholder_values(form.graph, self._exported, one.call.inputs, states)

    def _explained(self, forms: Sequence[Form], number: int, one: Named) -> Broken:
        form = forms[number]
        _, after = self.trail(form, one)
        if number == 0:
            what = "the exported graph does not do what the model does"
            return Broken(Finding("export", "torch.export", what, certain=True), ())
        _, before = self.trail(forms[number - 1], one)
        found = culprits(forms[number - 1].graph, before, form.graph, after, self._tolerance)
        what = f"{_said(form.stage)} makes other numbers of the graph"
        if found.seen_at:
            what += f", first seen in {found.seen_at}"
        finding = Finding("pass", form.stage, what, found.calls, found.lines, True, found.apart)
        return Broken(finding, tuple(points(after, before, self._tolerance)))


def _said(stage: str) -> str:
    return "putting in the bucket's sizes" if stage == "specialise" else f"the pass {stage}"


def copied(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A graph as it is now, with the same names."""
    made = torch.fx.Graph()
    result = made.graph_copy(graph, {})
    made.output(result)
    return made


def distinct(forms: Sequence[Form]) -> list[Form]:
    """Without those that are like the one before."""
    found: list[Form] = []
    for form in forms:
        if not found or str(form.graph) != str(found[-1].graph):
            found.append(form)
    return found
