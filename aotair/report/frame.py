"""What stands around every page of a report: its policy, its colours, the way to the other pages; and its tables."""

import base64
import hashlib
import html
from collections.abc import Mapping, Sequence

from aotair_runtime.errors import in_line
from aotair_runtime.format.schema import REPORT_FILE, REPORT_FOLDER

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fff; --line: #dde3ea; --raised: #f3f6f9; --link: #1a5fb4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dde4ec; --paper: #161b22; --line: #384352; --raised: #212a35; --link: #8ab8f0; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 0 auto; padding: 0 1rem 3rem;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1.05rem; }
a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: .8rem 0; border-bottom: 1px solid var(--line); }
nav [aria-current] { color: inherit; font-weight: 600; text-decoration: none; }
.skip { position: absolute; left: -99rem; } .skip:focus { position: static; }
:focus-visible { outline: 3px solid #e8872b; outline-offset: 2px; }
.scrolls { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th:first-child, td:first-child, .words th, .words td { text-align: left; }
th { background: var(--raised); }
caption { text-align: left; padding: .25rem 0; }
progress { appearance: none; width: 12rem; height: .7rem; border: 0; background: var(--line); }
progress::-webkit-progress-bar { background: var(--line); } progress::-webkit-progress-value { background: #4a7fb5; }
progress::-moz-progress-bar { background: #4a7fb5; }
code { background: var(--raised); padding: 0 .2rem; }
summary { cursor: pointer; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
details { margin: .6rem 0; }
"""

FRONT = REPORT_FILE  # the page that leads to the others
PASSES = f"{REPORT_FOLDER}/all-passes.html"  # an entry point's name has no dash


class Raw(str):
    """Text that is HTML already."""


def document(
    title: str, body: str, here: str, pages: Mapping[str, str], style: str = "", scripts: Sequence[str] = ()
) -> str:
    """A whole page. `here` is its own name in the artifact, `pages` says what each page of the report is called, by
    name. A browser fetches nothing for it and runs only `scripts`, whatever got into it."""
    style = _STYLE + style
    allowed = f"; script-src {' '.join(map(_digest, scripts))}" if scripts else ""
    policy = f"default-src 'none'; style-src {_digest(style)}{allowed}; base-uri 'none'; form-action 'none'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{escaped(title)} · aotair</title><style>{style}</style></head>\n<body>\n"
        f'<a class="skip" href="#content">Skip to the content</a>\n{_ways(here, pages)}\n'
        f'<main id="content">\n<h1>{escaped(title)}</h1>\n{body}\n</main>\n'
        f"{''.join(f'<script>{script}</script>' for script in scripts)}</body></html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "", kind: str = "") -> str:
    """A table; `kind` is its class. Cells that are `Raw` are HTML, all others are text."""
    above = f"<caption>{escaped(caption)}</caption>" if caption else ""
    opening = f'<table class="{kind}">' if kind else "<table>"
    lines = [f"{opening}{above}<tr>" + "".join(f'<th scope="col">{escaped(name)}</th>' for name in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows]
    return '<div class="scrolls">' + "\n".join([*lines, "</table></div>"])


def escaped(text: str) -> str:
    """A text on one line that others may have written, as HTML: what a reader could not see is shown escaped."""
    return html.escape(in_line(text))


def link(page: str, words: str, here: str) -> Raw:
    """The way from one page of the report to another."""
    above = "../" * here.count("/")
    return Raw(f'<a href="{escaped(above + page)}">{escaped(words)}</a>')


def _ways(here: str, pages: Mapping[str, str]) -> str:
    ways = [
        f'<a href="#content" aria-current="page">{escaped(words)}</a>' if page == here else link(page, words, here)
        for page, words in pages.items()
    ]
    return f'<nav aria-label="Pages of this report">{"".join(ways)}</nav>'


def _cell(value: object) -> str:
    return value if isinstance(value, Raw) else escaped(str(value))


def _digest(text: str) -> str:
    """What a policy calls an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
