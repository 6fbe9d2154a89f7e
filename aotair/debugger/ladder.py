"""The forms that a model takes in a build, each called like the original: export, after each pass, a bucket's graph."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from aotair_runtime.format.schema import Tolerance

from ..export.exported import Exported
from ..prove.apart import apart
from ..prove.runs import Run
from .changed import culprits
from .finding import Finding, Rung
from .graphs import observed, placeholder_values, run_graph
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
                want = wanted[one.words]
                rung = self._rung(forms[number], one, want)
                undone = not rung.within and 0 < number < len(forms) - 1 and self._rung(forms[-1], one, want).within
                heard(replace(rung, undone=undone))
                if not rung.within and not undone:
                    again = self._rung(forms[number], one, want).within
                    return self._explained(forms, number, one, again)
        return None

    def trail(self, form: Form, one: Named) -> tuple[Run, Trail]:
        """What a graph leaves behind of a call, and what each of its calls got and left."""
        values = self._values(form, one)
        outputs, trail = observed(form.graph, values, {*self._exported.states, *self._exported.inputs.values()})
        return self._left(outputs, values), trail

    def _left(self, outputs: Sequence[torch.Tensor], values: Mapping[str, torch.Tensor]) -> Run:
        lasting = [values[self._exported.inputs[name]] for name in self._reference.mutated]
        places = {item.name: placeholder for placeholder, item in self._exported.states.items()}
        lasting += [values[places[name]] for name in self._reference.states]
        return Run(self._names, [*outputs, *lasting])

    def _rung(self, form: Form, one: Named, want: Run) -> Rung:
        values = self._values(form, one)
        got = self._left(run_graph(form.graph, values), values)
        found = apart(want, as_far_as(got, want), self._tolerance)
        return Rung(form.stage, one.words, found.error, found.units, not found.wrong)

    def _values(self, form: Form, one: Named) -> dict[str, torch.Tensor]:
        states = {**self._reference.states, **one.call.states}
        return placeholder_values(form.graph, self._exported, one.call.inputs, states)

    def _explained(self, forms: Sequence[Form], number: int, one: Named, again: bool) -> Broken:
        """`again`: called once more, the form did what the original does."""
        form = forms[number]
        if again:
            what = f"{_said(form.stage)}: called again, it gave the right numbers: something is other in each call"
            return Broken(Finding("device", form.stage, what), ())
        if number == 0:
            return Broken(self._of_export(form, one), ())
        _, before = self.trail(forms[number - 1], one)
        _, after = self.trail(form, one)
        found = culprits(forms[number - 1].graph, before, form.graph, after, self._tolerance)
        kind, by, what = "pass", form.stage, f"{_said(form.stage)} makes other numbers of the graph"
        if found.kernel:
            kind, by = "kernel", found.kernel
            what = f"the kernel of {by}, which {form.stage} put there, gives other numbers than the op whose form it is"
        if found.seen_at:
            what += f", first seen in {found.seen_at}"
        if found.rounds:
            what = f"{_said(form.stage)} rounds otherwise, of which {found.seen_at} makes more than the tolerance"
        finding = Finding(kind, by, what, found.calls, found.lines, not found.rounds, found.apart)
        return Broken(finding, tuple(points(after, before, self._tolerance)))

    def _of_export(self, form: Form, one: Named) -> Finding:
        """What is wrong before any pass: the export, or the model itself where its inputs are padded."""
        if one.real is not None:
            same = self._reference.run(Named(one.words, one.call))
            if self._rung(form, one, same).within:
                want = self._reference.run(one)
                found = apart(want, as_far_as(same, want), self._tolerance)
                names = ", ".join(found.wrong)
                what = f"padding changes what the model itself answers ({names}), with {one.words}"
                return Finding("padding", names, what, certain=True)
        return Finding("export", "torch.export", "the exported graph does not do what the model does", certain=True)


def as_far_as(got: Run, want: Run) -> Run:
    """The part that calls of the other's sizes have."""
    cut = [
        tensor[tuple(slice(0, size) for size in other.shape)] if tensor.dim() == other.dim() else tensor
        for tensor, other in zip(got.tensors, want.tensors)
    ]
    return Run(got.names, cut)


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
