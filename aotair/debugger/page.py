"""What a search for wrong numbers came to, as a page: with the errors of the calls, one after another, drawn."""

import html
import math
from collections.abc import Iterator, Sequence

from aotair_runtime.format.html import html_table, html_text

from ..tools.static_page import static_page
from .finding import Debugged
from .text import HEAD, rung_cells, said
from .trail import Point

_STYLE = "svg { height: 16rem; } circle { fill: #4a8; } circle.wrong { fill: #c44; }"
_WIDTH, _HEIGHT, _LEAST = 1000, 240, -18.0  # of the drawing; the exponent of ten that stands for no error


def page(found: Sequence[Debugged]) -> str:
    """The whole page, of one entry point or several."""
    body = "\n".join(part for one in found for part in _sections(one))
    return static_page(f"Are the numbers of {found[0].name} right?", body, _STYLE)


def _sections(found: Debugged) -> Iterator[str]:
    yield f"<h2>{html.escape(f'{found.entry}, bucket {found.bucket}')}</h2>"
    yield html_table(HEAD, [rung_cells(rung) for rung in found.rungs])
    yield html_text("\n".join(said(found)))
    if found.points:
        yield "<h2>The error of each call</h2>" + _plot(found.points)
        rows = [[one.name, one.line, f"{one.error:.3g}", "" if one.within else "WRONG"] for one in found.points]
        yield html_table(["call", "line", "error", "result"], rows)


def _plot(points: Sequence[Point]) -> str:
    """Errors by powers of ten, one call after another; whoever hovers over one reads its name."""
    heights = [_LEAST if not one.error else max(_LEAST, _exponent(one.error)) for one in points]
    top = max(1.0, *heights)
    step = _WIDTH / max(1, len(points))
    dots = []
    for number, (one, height) in enumerate(zip(points, heights)):
        x, y = step * (number + 0.5), _HEIGHT * (top - height) / (top - _LEAST)
        title = html.escape(f"{one.name}, {one.line}: {one.error:.3g}")
        kind = "" if one.within else ' class="wrong"'
        dots.append(f'<circle{kind} cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{title}</title></circle>')
    label = f"errors from 1e{_LEAST:.0f} to 1e{top:.0f}, by call"
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 -8 {_WIDTH} {_HEIGHT + 16}" preserveAspectRatio="none">'
        f"{''.join(dots)}</svg><p>{label}</p>"
    )


def _exponent(error: float) -> float:
    return math.log10(error) if math.isfinite(error) else 30.0
