"""What lies where in a bucket's arena, drawn: offset against step, with names to hover over, and what is alive at the
peak. Inline SVG without scripts."""

import html
from collections.abc import Iterator, Sequence

from ..plan.picture import DrawnPeak, Picture, Strip, drawn_peak

STYLE = """
svg.arena { width: 100%; height: auto; font-size: 11px; font-variant-numeric: tabular-nums; }
.arena text { fill: currentColor; }
.arena .inner, .legend .inner { fill: #8fb3d6; stroke: #5f8ab3; background: #8fb3d6; }
.arena .input, .legend .input { fill: #e8a94a; stroke: #c17f1d; background: #e8a94a; }
.arena .output, .legend .output { fill: #5aae77; stroke: #35804f; background: #5aae77; }
.arena rect, .arena path { stroke-width: .5; }
.arena rect.thin { stroke-width: 1.6; }
.arena rect:hover { stroke: currentColor; stroke-width: 1.8; }
.arena path.axis { stroke: var(--line); }
.arena path.peak { stroke: var(--peak); stroke-width: 1.2; stroke-dasharray: 4 3; pointer-events: none; }
.arena text.mark { fill: var(--peak); font-weight: 600; }
:root { --peak: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --peak: #ff8a80; } }
.legend span { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem; vertical-align: baseline; }
details table { font-size: .9em; }
"""

_LEFT, _TOP, _WIDTH, _HEIGHT, _BOTTOM = 78, 20, 1000, 360, 34  # of the drawing, in pixels before it is scaled
_SEEN = 1 / 3  # of a pixel: what is smaller both ways is left out
_THIN = 1.5  # pixels: what is thinner gets an edge that can be seen and hovered over
_OTHERS = 4  # that share a rectangle, by name
_LISTED = 30  # rows of the table of what is alive at the peak
_KINDS = {"inner": "computed", "input": "inputs, copied in", "output": "outputs"}
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def legend() -> str:
    """What the colours mean, and how to read the drawings."""
    colours = "".join(f'<span class="{kind}"></span>{words}' for kind, words in _KINDS.items())
    return (
        "<p>Each rectangle is a piece of the arena: across, the steps from the copying in of inputs to "
        "the handing out of results; upwards, its offset. Hover over one to see whose it is. The dashed line marks "
        f'the step at which most is alive.</p>\n<p class="legend">{colours}</p>'
    )


def drawing(title: str, shown: Picture, named: int, is_open: bool) -> str:
    """One bucket: a line with its peak, which opens to the drawing and the table of what is alive there.

    At most `named` rectangles, the largest, can be hovered over; the rest are drawn without a name.
    """
    if not shown.strips:
        return f"<details><summary>{_text(title)}: nothing lies in the arena</summary></details>"
    found = drawn_peak(shown)
    summary = (
        f"{title}: {shown.height:,} bytes; at the peak, step {found.step} ({shown.steps[found.step]}), "
        f"{found.nbytes:,} are alive"
    )
    return "\n".join(
        [
            f"<details{' open' if is_open else ''}><summary>{_text(summary)}</summary>",
            *_svg(title, shown, found, named),
            _living(found),
            "</details>",
        ]
    )


def _svg(title: str, shown: Picture, found: DrawnPeak, named: int) -> Iterator[str]:
    scale = _Scale(shown)
    drawn = [strip for strip in shown.strips if max(scale.box(strip)[2:]) >= _SEEN]
    drawn.sort(key=lambda strip: -strip.size * (strip.last + 1 - strip.first))  # what is thin comes last, on top
    width, height = _LEFT + _WIDTH + 10, _TOP + _HEIGHT + _BOTTOM
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="arena" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{_text(f"the arena of {title}, offset against step")}">'
    )
    yield from _axes(shown, scale)
    yield from (_rectangle(strip, shown, scale) for strip in drawn[:named])
    yield from _unnamed(drawn[named:], scale)
    yield from _mark(found, scale)
    yield "</svg>"
    left_out, nameless = len(shown.strips) - len(drawn), len(drawn[named:])
    if left_out or nameless:
        yield (
            f"<p>Of {len(shown.strips):,} rectangles, {left_out:,} are too small to be seen and are left out; "
            f"{nameless:,} of the smallest are drawn without a name.</p>"
        )


class _Scale:
    """From steps and bytes to pixels."""

    def __init__(self, shown: Picture):
        self._x, self._y = _WIDTH / len(shown.steps), _HEIGHT / shown.height

    def x(self, step: float) -> float:
        return _LEFT + step * self._x

    def y(self, offset: int) -> float:
        return _TOP + _HEIGHT - offset * self._y

    def box(self, strip: Strip) -> tuple[float, float, float, float]:
        """Left, top, width and height: it covers its steps whole."""
        wide, high = (strip.last + 1 - strip.first) * self._x, strip.size * self._y
        return self.x(strip.first), self.y(strip.offset + strip.size), wide, high


def _rectangle(strip: Strip, shown: Picture, scale: _Scale) -> str:
    box = scale.box(strip)
    x, y, wide, high = map(_number, box)
    kind = f"{strip.kind} thin" if min(box[2:]) < _THIN else strip.kind
    lines = [
        f"{strip.name}: {_layout(strip)}",
        f"{strip.size:,} bytes at {strip.offset:,}",
        f"step {strip.first} ({shown.steps[strip.first]}) to {strip.last} ({shown.steps[strip.last]})",
        *filter(None, [_others(strip), strip.source]),
    ]
    title = "\n".join(map(_text, lines))
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{wide}" height="{high}"><title>{title}</title></rect>'


def _unnamed(strips: Sequence[Strip], scale: _Scale) -> Iterator[str]:
    """One path for each kind, to a tenth of a pixel: there may be thousands."""
    for kind in _KINDS:
        boxes = [[_number(value, 1) for value in scale.box(strip)] for strip in strips if strip.kind == kind]
        if boxes:
            parts = "".join(f"M{x} {y}h{wide}v{high}h-{wide}z" for x, y, wide, high in boxes)
            yield f'<path class="{kind}" d="{parts}"/>'


def _axes(shown: Picture, scale: _Scale) -> Iterator[str]:
    bottom, right = _TOP + _HEIGHT, _LEFT + _WIDTH
    for offset in range(0, shown.height + 1, _byte_tick(shown.height)):
        y = _number(scale.y(offset))
        yield f'<path class="axis" d="M{_LEFT - 4} {y}H{right}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y}" text-anchor="end" dominant-baseline="middle">{_bytes(offset)}</text>'
    for step in range(0, len(shown.steps), _step_tick(len(shown.steps))):
        x = _number(scale.x(step + 0.5))
        yield f'<path class="axis" d="M{x} {bottom}v4"/>'
        yield f'<text x="{x}" y="{bottom + 15}" text-anchor="middle">{step}</text>'
    yield f'<text x="{_LEFT + _WIDTH // 2}" y="{bottom + 30}" text-anchor="middle">step</text>'


def _mark(found: DrawnPeak, scale: _Scale) -> Iterator[str]:
    x = scale.x(found.step + 0.5)
    anchor = "start" if x < _LEFT + _WIDTH * 0.15 else "end" if x > _LEFT + _WIDTH * 0.85 else "middle"
    yield f'<path class="peak" d="M{_number(x)} {_TOP - 4}V{_TOP + _HEIGHT}"/>'
    words = f"step {found.step}: {found.nbytes:,} bytes alive"
    yield f'<text class="mark" x="{_number(x)}" y="{_TOP - 8}" text-anchor="{anchor}">{words}</text>'


def _living(found: DrawnPeak) -> str:
    lines = [
        f"<table><caption>Alive at step {found.step}, the largest first</caption>"
        "<tr><th>tensor</th><th>dtype and shape</th><th>bytes</th><th>steps</th><th>line of the model</th></tr>"
    ]
    for strip in found.strips[:_LISTED]:
        cells = (
            strip.name + (f", and {len(strip.others)} more in its place" if strip.others else ""),
            _layout(strip),
            f"{strip.size:,}",
            f"{strip.first} to {strip.last}",
            strip.source,
        )
        lines.append("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in cells) + "</tr>")
    rest = found.strips[_LISTED:]
    if rest:
        total = sum(strip.size for strip in rest)
        lines.append(f"<tr><td>{len(rest):,} smaller</td><td></td><td>{total:,}</td><td></td><td></td></tr>")
    return "\n".join([*lines, "</table>"])


def _others(strip: Strip) -> str:
    if not strip.others:
        return ""
    more = len(strip.others) - _OTHERS
    return "in its place too: " + ", ".join(strip.others[:_OTHERS]) + (f" and {more} more" if more > 0 else "")


def _layout(strip: Strip) -> str:
    return f"{strip.dtype}[{', '.join(map(str, strip.shape))}]"


def _byte_tick(height: int) -> int:
    """A power of two that goes into the height at most six times."""
    return 1 << max(0, (height // 6).bit_length())


def _step_tick(count: int) -> int:
    """1, 2 or 5, or ten times as many, so that there are at most twelve."""
    ticks: list[int] = [n * 10**power for power in range(20) for n in (1, 2, 5)]
    return next(tick for tick in ticks if tick * 12 >= count)


def _bytes(value: int) -> str:
    """A multiple of a power of two, in the largest unit that divides it."""
    unit = 0
    while value and value % 1024 == 0 and unit < len(_UNITS) - 1:
        value, unit = value // 1024, unit + 1
    return f"{value} {_UNITS[unit]}" if value else "0"


def _number(value: float, places: int = 3) -> str:
    return f"{value:.{places}f}".rstrip("0").rstrip(".")


def _text(value: str) -> str:
    """As HTML and as XML: what cannot be printed, which neither could hold, becomes a question mark."""
    return html.escape("".join(c if c.isprintable() else "?" for c in value))
