"""What a search for wrong numbers came to, as a text."""

from collections.abc import Iterator

from aotair_runtime.format.text import table

from .finding import Debugged, Finding, Rung


def text(found: Debugged, top: int = 12) -> str:
    """A table of the forms that were called, and what is wrong. `top`: how many calls before the first wrong one."""
    return "\n".join(_lines(found, top))


def rung_cells(rung: Rung) -> list[str]:
    """A row of the table."""
    said = "right" if rung.within else "undone" if rung.undone else "WRONG"
    return [rung.form, rung.call, said, f"{rung.error:.3g}", f"{rung.units:.3g}"]


HEAD = ["form", "called with", "result", "largest error", "units"]


def said(found: Debugged) -> Iterator[str]:
    """What was found, in words."""
    yield from (f"note: {note}" for note in found.notes)
    if found.is_right:
        yield "Nothing is wrong: every form gives the same numbers, within the tolerance."
    for finding in found.findings:
        yield from _finding(finding)


def _lines(found: Debugged, top: int) -> Iterator[str]:
    yield f"{found.name}: {found.entry}, bucket {found.bucket}\n"
    yield table(HEAD, [rung_cells(rung) for rung in found.rungs]) + "\n"
    yield from said(found)
    wrong = next((n for n, point in enumerate(found.points) if not point.within), None)
    if wrong is not None:
        yield "\nThe errors of the calls up to the first wrong one:"
        rows = [
            [point.name, point.line, f"{point.error:.3g}", "" if point.within else "WRONG"]
            for point in found.points[max(0, wrong + 1 - top) : wrong + 1]
        ]
        yield table(["call", "line", "error", "result"], rows)


def _finding(finding: Finding) -> Iterator[str]:
    yield f"{'certain' if finding.certain else 'likely'}: {finding.what}"
    if finding.calls:
        yield f"  calls: {', '.join(finding.calls[:6])}" + (", …" if len(finding.calls) > 6 else "")
    for line in finding.lines[:6]:
        yield f"  line:  {line}"
    if finding.apart is not None:
        yield f"  is:        {finding.apart.got}"
        yield f"  should be: {finding.apart.want}"
