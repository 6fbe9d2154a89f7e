"""The graph of an entry point's largest bucket, for a browser to draw: calls in modules, and what they read."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from aotair_runtime.errors import in_line
from aotair_runtime.format.debug_data import DebugData
from aotair_runtime.format.schema import EntryPoint, Program
from aotair_runtime.format.sizes import describe

from ..diff.flow import LASTS, RETURN, Flow, Origin, Source, Step, flow_of
from .frame import escaped
from .tree import Module, tree

SCRIPTS = tuple(Path(__file__).with_name(f"{name}.js").read_text(encoding="utf-8") for name in ("layout", "graph"))
STYLE = """
.graph svg { width: 100%; height: min(75vh, 60rem); border: 1px solid var(--line); font: 11px system-ui, sans-serif;
  touch-action: none; cursor: grab; user-select: none; }
.graph .ways { display: flex; flex-wrap: wrap; gap: .4rem; align-items: baseline; }
.graph button { font: inherit; }
.graph text { fill: currentColor; } .graph .small { opacity: .75; font-size: 10px; }
.graph rect { fill: var(--raised); stroke: #7d8ea1; } .graph g.module > rect { fill: var(--module); }
.graph g.input > rect { fill: var(--input); } .graph g.output > rect { fill: var(--output); }
.graph g.open > rect { fill: var(--paper); }
.graph g[role] { cursor: pointer; } .graph g[role]:focus { outline: none; }
.graph g[role]:focus-visible > rect, .graph g.shown > rect { stroke: #e8872b; stroke-width: 3; }
.graph path { fill: none; stroke: #7d8ea1; stroke-width: 1.2; }
.graph dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; align-content: start;
  min-height: 6rem; }
.graph dt { font-weight: 600; } .graph dd { margin: 0; overflow-wrap: anywhere; }
:root { --module: #dbe7f5; --input: #f8e3c3; --output: #cfeed9; }
@media (prefers-color-scheme: dark) { :root { --module: #26405e; --input: #5c431a; --output: #1d4a2a; } }
"""
_MOST = 20_000  # calls that are drawn
_BODY = """<p>Boxes are calls, and modules of the model that open; lines lead down from what is computed to what reads
it. Layers one after another that make the same calls are one box. Weights and states are not drawn: a call names them.
Tab goes from box to box, Enter opens and closes; drag or the arrow keys move, + and - zoom, 0 shows all, and the wheel
zooms with Ctrl held or after a click into the drawing.</p>
<div class="graph">
<div class="ways" role="toolbar" aria-label="The drawing"><button type="button" data-way="in">Zoom in</button>
<button type="button" data-way="out">Zoom out</button><button type="button" data-way="all">Show all</button>
<button type="button" data-way="open">Open modules</button><button type="button" data-way="close">Close modules</button>
<output role="status"></output><a class="skip" href="#chosen">Skip the drawing</a></div>
<svg role="application" tabindex="0" aria-label="The graph of {label}"><g></g></svg>
<dl id="chosen" tabindex="-1" aria-live="polite" aria-label="What is chosen">
<dt>Choose a box</dt><dd>to see what it is.</dd></dl>
<noscript><p>The drawing needs scripts.</p></noscript>
<script type="application/json" id="graph">{data}</script>
</div>"""


def drawing(program: Program, entry: EntryPoint, names: Sequence[str], debug: DebugData) -> str:
    """The part of a page that draws it; `names` are what the constants are called, by `constant_names`."""
    bucket = max(entry.buckets, key=lambda bucket: math.prod(bucket.sizes))
    label = f"{entry.name}, {describe(entry, bucket.sizes)}"
    if len(bucket.code) > _MOST:
        return (
            f"<p>The graph of {escaped(label)} has {len(bucket.code):,} instructions, and more than {_MOST:,} are not "
            "drawn here: Model Explorer opens them.</p>"
        )
    flow = flow_of(program, entry, bucket, names, debug)
    # In a script, only the end of its tag or the beginning of a comment is more than text.
    data = json.dumps(_data(program.name, flow), separators=(",", ":")).replace("<", "\\u003c")
    return f"<p>The graph of {escaped(label)}.</p>{_BODY.format(label=escaped(label), data=data)}"


def _data(name: str, flow: Flow) -> dict[str, object]:
    """What the script reads: all texts once, the calls with numbers of theirs, and the modules."""
    texts = _Texts()
    inputs = list(dict.fromkeys(s for step in flow.steps for s in _read(step, "input")))
    given = [[texts.number(one), *[texts.number("")] * 6, 0, []] for one in inputs]
    places = {one: number for number, one in enumerate(inputs)}
    calls = [_call(step, len(inputs), places, texts) for step in flow.steps]
    root = tree(flow.steps)
    root.name = name
    model = _module(root, len(inputs), range(len(inputs)))
    return {"inputs": len(inputs), "calls": given + calls, "model": model, "texts": texts.all()}


def _call(step: Step, inputs: int, places: dict[str, int], texts: "_Texts") -> list[object]:
    """Label, arguments, results, weights, states, line, passes, stream, and the numbers of what is read."""
    is_end = step.op == RETURN
    label = "outputs" if is_end else step.op.partition("::")[2] or step.op
    said = (
        label,
        step.said,
        ", ".join(step.writes),
        ", ".join(_read(step, "constant")),
        ", ".join(_read(step, "state")),
        "" if is_end else step.made.line,
        "" if is_end else step.made.passes,
    )
    read = [inputs + origin for origin in _origins(step) if isinstance(origin, int)]
    read += [places[one] for one in _read(step, "input")]
    return [*map(texts.number, said), step.stream, list(dict.fromkeys(read))]


def _origins(step: Step) -> list[Origin]:
    """What it reads; at the end, what the outputs are, and not what lies in states by then."""
    return [source.origin for read in step.reads if not _lasts(read) for source in read]


def _lasts(read: Sequence[Source]) -> bool:
    origin = read[0].origin if read else 0
    return isinstance(origin, tuple) and origin[0] == LASTS


def _read(step: Step, kind: str) -> list[str]:
    """The names of what it reads of a kind, each once."""
    found = (origin for origin in _origins(step) if isinstance(origin, tuple) and origin[0] == kind)
    return list(dict.fromkeys(str(origin[1]) for origin in found))


def _module(module: Module, inputs: int, first: Sequence[int] = ()) -> dict[str, object]:
    """`inputs` come before the calls in the numbers of both; `first`: what stands before the module's own parts."""
    parts = [part + inputs if isinstance(part, int) else _module(part, inputs) for part in module.parts]
    name, path = in_line(module.name), in_line(module.path)
    return {"name": name, "path": path, "alike": module.alike, "parts": [*first, *parts]}


class _Texts:
    """All texts, each once, as a reader may see them."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(in_line(text), len(self._numbers))

    def all(self) -> list[str]:
        return list(self._numbers)
