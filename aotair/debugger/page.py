"""What a search for wrong numbers came to, as a page: with the errors of the calls, one after another, drawn."""

import html
import math
from collections.abc import Iterator, Sequence

from aotair_runtime.format.html import html_table, html_text

from .finding import Debugged
from .text import HEAD, rung_cells, said
from .trail import Point

# A browser fetches and runs nothing for the page, whatever got into it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem; border-bottom: 1px solid #8886; text-align: left; }
svg { width: 100%; height: 16rem; border: 1px solid #8886; }
circle { fill: #4a8; } circle.wrong { fill: #c44; }
"""
_WIDTH, _HEIGHT, _LEAST = 1000, 240, -18.0  # of the drawing; the exponent of ten that stands for no error


def page(found: Sequence[Debugged]) -> str:
    """The whole page, of one entry point or several."""
    title = html.escape(f"Are the numbers of {found[0].name} right?")
    body = "\n".join(part for one in found for part in _sections(one))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n{body}\n</body></html>\n"
    )


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
