"""The page of the passes, one after another: what each changed in each graph, before and after, what it left alone."""

import html
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aotair_runtime.errors import in_line

from ..passes.edits import Account
from ..passes.observer import PassRecord
from .explain import grouped
from .frame import PASSES, document, escaped, table
from .places import Alike, alike, same_as_before

_STYLE = """
.search { position: sticky; top: 0; padding: .6rem 0; background: var(--paper); }
.search input { font: inherit; width: min(30rem, 60%); }
.pass { border-left: 3px solid var(--line); padding-left: .8rem; }
.pass > summary b { font-size: 1.05rem; } summary { scroll-margin-top: 4rem; }
.sides { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: .6rem; }
@media (max-width: 45rem) { .sides { grid-template-columns: minmax(0, 1fr); } }
.sides pre { margin: 0; padding: .4rem; font-size: .82rem; overflow-x: auto; background: var(--raised); }
.sides h3 { margin: 0; font-size: .85rem; }
.sides del, .sides ins { display: block; text-decoration: none; white-space: pre; width: max-content; min-width: 100%; }
.sides del { background: #ffd7d5; } .sides ins { background: #ccf0d3; }
@media (prefers-color-scheme: dark) { .sides del { background: #5c2326; } .sides ins { background: #1d4a2a; } }
"""
_SCRIPT = Path(__file__).with_name("search.js").read_text(encoding="utf-8")
_MOST_LINES, _MOST_LINE = 60, 600  # of one side, and letters of one line
_MOST_BYTES = 3_000_000  # of all places, after which they are counted and not shown
_MODULES = 2  # that are named where places are alike


def passes_page(name: str, records: Sequence[PassRecord], pages: Mapping[str, str]) -> str:
    """The page of the model of that name."""
    body = "\n".join([_SEARCH, *_sections(records)])
    return document(f"{name}: passes", body, PASSES, pages, _STYLE, [_SCRIPT])


_SEARCH = """<p>The passes in the order in which they ran, over each graph. Where a pass changed several places in the \
same way, but for numbers, the first is shown. How long each took is not written here, since the same recipe gives the \
same bytes: <code>aotair.logger</code> says it at the level of debugging.</p>
<search class="search"><label for="search">Show what holds the words </label>\
<input id="search" type="search" placeholder="an op, a module, a pass, a line of the model"> \
<output id="found" for="search" role="status"></output></search>"""


def _sections(records: Sequence[PassRecord]) -> Iterator[str]:
    room, same = _Room(_MOST_BYTES), same_as_before(records)
    numbered = enumerate(records)
    for graph, group in itertools.groupby(numbered, key=lambda item: item[1].graph):
        ran = list(group)
        told = [(number, record) for number, record in ran if record.changes or record.accounts]
        yield f'<section class="group"><h2>{escaped(f"Graph of {graph}") if graph else "The graph"}</h2>'
        yield _ran([record for _, record in ran])
        for number, record in told:
            yield _pass(record, same.get(number), room)
        yield "</section>"


class _Room:
    """How many bytes of places there is room for."""

    def __init__(self, nbytes: int):
        self._left = nbytes

    def takes(self, text: str) -> bool:
        """Whether a text has room; from the first that has none, nothing has."""
        self._left = self._left - len(text.encode()) if self._left > 0 else self._left
        return self._left > 0


def _ran(records: Sequence[PassRecord]) -> str:
    rows = [
        [record.name, record.rewrites, record.before, record.after, sum(not a.rewritten for a in record.accounts)]
        for record in records
    ]
    changed = sum(bool(record.changes) for record in records)
    head = ["pass", "rewrites", "nodes before", "nodes after", "left alone"]
    return (
        f"<details><summary>Of {_counted(len(records), 'run')} of passes {changed} changed something: "
        f"{records[0].before:,} nodes before, {records[-1].after:,} after</summary>{table(head, rows)}</details>"
    )


def _pass(record: PassRecord, as_in: str | None, room: _Room) -> str:
    left = [account for account in record.accounts if not account.rewritten]
    counted = [
        _counted(record.rewrites, "rewrite"),
        f"{record.before:,} nodes before, {record.after:,} after",
        *([f"{_counted(len(record.changes), 'place')} changed"] if record.changes else []),
        *([f"{len(left):,} left alone"] if left else []),
    ]
    head = f"<summary><b>{escaped(record.name)}</b>: {', '.join(counted)}</summary>"
    if as_in is not None:
        inner = f'<p class="part">The same as in the graph of {escaped(as_in)}, but for numbers.</p>'
    else:
        inner = "\n".join([*_places(record, room), _left_alone(left, room)])
    return f'<details class="pass group">{head}\n{inner}</details>'


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _places(record: PassRecord, room: _Room) -> Iterator[str]:
    kinds = alike(record.changes)
    for number, place in enumerate(kinds):
        text = _place(record.name, place)
        if not room.takes(text):
            yield f"<p>{len(kinds) - number:,} more kinds of places are left out: the page would be too large.</p>"
            return
        yield text


def _place(name: str, place: Alike) -> str:
    change = place.first
    return (
        f'<details class="part" open><summary>{escaped(_where(place))}</summary><div class="sides">'
        f"{_side('Before', name, change.above, change.before, change.below, 'del')}"
        f"{_side('After', name, change.above, change.after, change.below, 'ins')}</div></details>"
    )


def _where(place: Alike) -> str:
    modules = list(dict.fromkeys(module or "no module of the model" for module in place.modules))
    named = ", ".join("the model itself" if module == "." else module for module in modules[:_MODULES])
    more = f" and {len(modules) - _MODULES:,} more modules" if len(modules) > _MODULES else ""
    return f"{named}{more}" + (f": {len(place.modules):,} times" if len(place.modules) > 1 else "")


def _side(title: str, name: str, above: Sequence[str], lines: Sequence[str], below: Sequence[str], tag: str) -> str:
    marked = [f"<{tag}>{_line(line)}</{tag}>" for line in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        marked.append(f"<i>… and {len(lines) - _MOST_LINES:,} more lines\n</i>")
    around = ["".join(f"{_line(line)}\n" for line in part) for part in (above, below)]
    label = escaped(f"{title} {name}")
    return (
        f'<div><h3>{title}</h3><pre tabindex="0" role="region" aria-label="{label}">{around[0]}'
        f"{''.join(marked)}{around[1]}</pre></div>"
    )


def _line(text: str) -> str:
    text = in_line(text)
    return html.escape(text if len(text) <= _MOST_LINE else f"{text[:_MOST_LINE]}…")


def _left_alone(accounts: Sequence[Account], room: _Room) -> str:
    if not accounts:
        return ""
    rows = [[count if a.node else "no", a.op, a.text, a.source] for count, a in grouped(accounts)]
    inner = table(["how many", "op", "why", "line of the model"], rows, kind="words")
    if not room.takes(inner):
        inner = f"<p>{len(rows):,} kinds of reasons are left out: the page would be too large.</p>"
    return f'<details class="part"><summary>Left alone: {len(accounts):,}</summary>{inner}</details>'
