"""A difference as a page: the tables of the text without a limit, and the live bytes of both plans step by step."""

import html
from collections.abc import Iterator, Sequence

from aotair_runtime.errors import in_line
from aotair_runtime.format.html import html_table, html_text

from ..tools.static_page import static_page
from .diff import Diff
from .plans import PlanChange
from .text import SAYS, call_text, growth, milliseconds, plan_cells, weight_cells, where

_STYLE = """
.before pre { border-left: 4px solid #c55; padding-left: .6rem; }
.after pre { border-left: 4px solid #4a4; padding-left: .6rem; }
polyline { fill: none; stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.one { stroke: #c55; } .other { stroke: #4a4; }
svg { height: 12rem; }
"""
_PLANS = 12  # that are drawn


def page(found: Diff) -> str:
    """The whole page."""
    body = "\n".join(_sections(found)) or "<p>No difference.</p>"
    return static_page(f"{found.before} → {found.after}", body, _STYLE)


def _sections(found: Diff) -> Iterator[str]:
    for title, facts in (
        ("Recipe", found.recipe),
        ("Versions and needs", found.versions),
        ("Inputs, outputs, states", found.interface),
        ("Buckets", found.buckets),
        ("Proofs", found.proofs),
    ):
        if facts:
            yield _table(title, ["", "before", "after"], [[fact.name, fact.before, fact.after] for fact in facts])
    if found.graphs:
        yield "<h2>Graphs</h2>"
        yield from _graphs(found)
    if found.weights:
        head = ["weight", "what", "before", "after", "numbers", "largest", "relative"]
        yield _table("Weights", head, [weight_cells(change) for change in found.weights])
    if found.plans:
        head = ["bucket", "bytes before", "after", "peak before", "after"]
        yield _table("Plans", head, [plan_cells(change) for change in found.plans])
        yield from map(_drawn, found.plans[:_PLANS])
    if found.amounts:
        rows = [[a.name, f"{a.before:,.0f}", f"{a.after:,.0f}", growth(a.before, a.after)] for a in found.amounts]
        yield _table("Bytes", ["", "before", "after", "grew by"], rows)
    for title, times in (("Time by op", found.times), ("Replays", found.replays)):
        if times:
            rows = [[t.name, milliseconds(t.before), milliseconds(t.after), growth(t.before, t.after)] for t in times]
            yield _table(title, ["", "ms before", "ms after", "grew by"], rows)


def _graphs(found: Diff) -> Iterator[str]:
    for change in found.graphs:
        head = html.escape(in_line(f"{SAYS[change.kind]}{where(change)}"))
        sides = []
        for side, calls in (("before", change.before), ("after", change.after)):
            if calls:
                lines = "\n".join(in_line(call_text(call)) for call in calls)
                sides.append(f'<div class="{side}">{html_text(lines)}</div>')
        yield f"<details open><summary>{head}</summary>{''.join(sides)}</details>"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return f"<h2>{title}</h2>\n{html_table(head, rows)}"


def _drawn(change: PlanChange) -> str:
    """The live bytes of both plans, from the first step to the last of the longer one."""
    most = max((*change.steps_before, *change.steps_after, 1))
    width = max(len(change.steps_before), len(change.steps_after), 2) - 1
    lines = []
    for name, steps in (("one", change.steps_before), ("other", change.steps_after)):
        points = " ".join(f"{step},{100 - 100 * nbytes / most:.2f}" for step, nbytes in enumerate(steps))
        lines.append(f'<polyline class="{name}" points="{points}"/>')
    name = html.escape(in_line(change.bucket))
    return (
        f"<h3>{name}</h3>\n<p>Live bytes by step, {most:,} at most: before in red, after in green.</p>\n"
        f'<svg viewBox="0 -2 {width} 104" preserveAspectRatio="none" role="img" aria-label="live bytes of {name}">'
        f"{''.join(lines)}</svg>"
    )
