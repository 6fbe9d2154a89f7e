"""A difference as text for a terminal: a section for each part that differs, and nothing for the others."""

from collections.abc import Iterator, Sequence

from aotair_runtime.errors import in_line
from aotair_runtime.format.text import table

from .diff import Diff
from .facts import Fact
from .graphs import Call, GraphChange
from .plans import PlanChange
from .weights import WeightChange

_MOST = 40  # rows of a section
SAYS = {
    "added": "added",
    "removed": "removed",
    "changed": "changed",
    "fused": "fused differently",
    "rewired": "reads another result",
    "moved": "runs at another place in the order",
    "stream": "runs on another stream",
    "waits": "another wait between streams",
}


def text(found: Diff) -> str:
    """The whole difference."""
    lines = list(_sections(found))
    head = f"{in_line(found.before)} → {in_line(found.after)}"
    return "\n\n".join([head, *lines] if lines else [f"{head}: no difference"])


def _sections(found: Diff) -> Iterator[str]:
    for title, facts in (
        ("recipe", found.recipe),
        ("versions and needs", found.versions),
        ("inputs, outputs, states", found.interface),
        ("buckets", found.buckets),
    ):
        if facts:
            yield _facts(title, facts)
    if found.graphs:
        yield "\n".join(["graphs", *_cut([graph_lines(change) for change in found.graphs])])
    if found.weights:
        rows = [weight_cells(change) for change in found.weights]
        yield _rows(["weight", "what", "before", "after", "numbers", "largest", "relative"], rows)
    if found.plans:
        rows = [plan_cells(change) for change in found.plans]
        yield _rows(["plan", "bytes before", "after", "peak before", "after"], rows)
    if found.proofs:
        yield _facts("proofs", found.proofs)
    if found.amounts:
        rows = [[a.name, f"{a.before:,.0f}", f"{a.after:,.0f}", growth(a.before, a.after)] for a in found.amounts]
        yield _rows(["bytes", "before", "after", "grew by"], rows)
    for title, times in (("time of an op", found.times), ("replay of a bucket", found.replays)):
        if times:
            rows = [[t.name, milliseconds(t.before), milliseconds(t.after), growth(t.before, t.after)] for t in times]
            yield _rows([title, "ms before", "ms after", "grew by"], rows)


def graph_lines(change: GraphChange) -> str:
    """A change of a graph: what it is, where, and the calls of both sides."""
    lines = [f"  {SAYS[change.kind]}{where(change)}"]
    for sign, calls in (("-", change.before), ("+", change.after)):
        lines += [f"    {sign} {call_text(call)}" for call in calls[:_MOST]]
        if len(calls) > _MOST:
            lines.append(f"    {sign} … and {len(calls) - _MOST} more")
    return "\n".join(map(in_line, lines))


def where(change: GraphChange) -> str:
    """How often a change is there, in which modules and buckets."""
    found = []
    if change.modules:
        found.append(f"in {_some(change.modules, 'modules')}")
    if change.buckets:
        found.append(f"{_some(change.buckets, 'buckets')}")
    return f" ({'; '.join(found)})" if found else ""


def call_text(call: Call) -> str:
    """`aten::mul.Tensor(float32[4], 2)  model.py:3, in forward`."""
    stream = f", stream {call.stream}" if call.stream else ""
    passes = f", by {call.passes}" if call.passes not in ("", "export") else ""
    return f"{call.op}({call.said})  {call.line}{stream}{passes}"


def weight_cells(change: WeightChange) -> list[str]:
    """A row for one weight."""
    before, after = (change.before, change.after) if change.before != change.after else (change.before, "the same")
    if change.what != "values":
        return [change.name, change.what, before, after, "", "", ""]
    numbers = f"{change.numbers:,} of {change.of:,}"
    return [change.name, change.what, before, after, numbers, f"{change.largest:.3g}", f"{change.relative:.3g}"]


def plan_cells(change: PlanChange) -> list[str]:
    """A row for one bucket's plan."""
    peaks = [
        f"{peak.nbytes:,} at step {peak.step} ({peak.op or 'an event'}, {peak.line})"
        for peak in (change.peak_before, change.peak_after)
    ]
    return [change.bucket, f"{change.before:,}", f"{change.after:,}", *peaks]


def growth(before: float, after: float) -> str:
    """`+1.5 %`; of what was not there before, that it is new."""
    return f"{after / before - 1:+.1%}" if before else "new"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.4f}" if seconds else ""


def _facts(title: str, facts: Sequence[Fact]) -> str:
    return _rows([title, "before", "after"], [[fact.name, fact.before, fact.after] for fact in facts])


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    more = f"\n… and {len(rows) - _MOST} more: --html or --json has all" if len(rows) > _MOST else ""
    return table(head, rows[:_MOST]) + more


def _cut(lines: Sequence[str]) -> list[str]:
    more = [f"  … and {len(lines) - _MOST} more: --html or --json has all"] if len(lines) > _MOST else []
    return [*lines[:_MOST], *more]


def _some(names: Sequence[str], what: str) -> str:
    if len(names) <= 3:
        return ", ".join(names)
    return f"{len(names)} {what}: {names[0]} … {names[-1]}"
