"""report.html: what an artifact holds and what was proved of it, for people; one file, no network, no scripts."""

import html
from collections.abc import Iterator, Mapping, Sequence

from aotair_runtime.format.prologue import follows_from
from aotair_runtime.format.schema import EntryPoint, Form, PaddingProof, Program, Proof
from aotair_runtime.format.sizes import describe, shape_text

from ..plan.picture import Picture
from ..summary import Quantised
from . import arena

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #dde3ea; text-align: right; }
th:first-child, td:first-child { text-align: left; }
th { background: #f3f6f9; }
.bar { display: inline-block; height: .7rem; background: #4a7fb5; vertical-align: middle; }
code { background: #f3f6f9; padding: 0 .2rem; }
"""


# A browser fetches and runs nothing for the page, whatever got into it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_NAMED = 6_000  # rectangles that can be hovered over, on the whole page
_NAMED_EACH = 100  # and in each bucket at least

Pictures = Mapping[tuple[str, tuple[int, ...]], Picture]  # by entry point and bucket


def page(
    program: Program,
    fusions: Mapping[str, tuple[int, int]],
    pictures: Pictures,
    quantised: Quantised | None = None,
) -> str:
    """The whole page; the same for the same program. `fusions`: what each rule fused, and left alone; `quantised`: what
    `quantize` of the recipe did."""
    body = "\n".join(_sections(program, fusions, pictures, quantised))
    title = html.escape(program.name)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{title} · aotair</title>'
        f"<style>{_STYLE}{arena.STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def _sections(
    program: Program, fusions: Mapping[str, tuple[int, int]], pictures: Pictures, quantised: Quantised | None
) -> Iterator[str]:
    need = program.requirements
    weights = sum(_nbytes(c.dtype, c.shape) for c in program.constants)
    yield (
        f"<p>Built with torch {html.escape(need.torch_built)}; needs torch {html.escape(need.torch_min)} or newer "
        f"and the device <code>{html.escape(need.device)}</code>. "
        f"{len(program.constants)} distinct weights, {weights:,} bytes; "
        f"one arena of {program.arena:,} bytes for all buckets.</p>"
    )
    for entry in program.entry_points:
        yield f"<h2>Entry point {html.escape(entry.name)}</h2>"
        yield _interface(entry)
        yield "<h2>Buckets</h2>" + _buckets(program, entry)
        if pictures:  # none where the plans are another artifact's
            yield "<h2>The arena, step by step</h2>" + _arenas(entry, pictures)
        yield "<h2>Padding proofs</h2>" + _level(entry) + _padding(entry)
    if program.prologue.parts:
        made = [[name, ", ".join(names)] for name, names in follows_from(program).items()]
        yield "<h2>Weights made of others</h2>" + _table(["tensor", "of"], made)
    if quantised is not None:
        yield "<h2>Quantised layers</h2>" + _quantised(quantised)
    if fusions:
        rows = [[name, done, left] for name, (done, left) in fusions.items()]
        yield "<h2>Fusion</h2>" + _table(["rule", "fused", "nearest misses (aotair explain says why)"], rows)
    yield "<h2>Ops</h2>" + _ops(program)


def _interface(entry: EntryPoint) -> str:
    rows = [
        [
            f"input {item.name}",
            item.dtype,
            shape_text(entry, item.shape),
            item.kind,
            "" if item.pad is None else item.pad,
        ]
        for item in entry.inputs
    ]
    rows += [[f"output {i}", item.dtype, shape_text(entry, item.shape), "", ""] for i, item in enumerate(entry.outputs)]
    return _table(["tensor", "dtype", "shape", "class", "pad"], rows)


def _buckets(program: Program, entry: EntryPoint) -> str:
    rows = []
    for bucket in entry.buckets:
        width = round(200 * bucket.height / max(1, program.arena))
        error = error_text(bucket.proof) if bucket.proof else "not proved"
        bar = _Raw(f'<span class="bar" style="width:{width}px"></span>')
        rows.append(
            [
                describe(entry, bucket.sizes),
                len(bucket.code),
                f"{bucket.height:,}",
                f"{bucket.lower_bound:,}",
                error,
                bar,
            ]
        )
    return _table(["bucket", "instructions", "arena bytes", "lower bound", "largest error", "of the arena"], rows)


def _arenas(entry: EntryPoint, pictures: Pictures) -> str:
    """A drawing for each bucket; the highest is open."""
    named = max(_NAMED // len(pictures), _NAMED_EACH)
    highest = max(entry.buckets, key=lambda bucket: bucket.height)
    parts = [
        arena.drawing(
            describe(entry, bucket.sizes), pictures[entry.name, bucket.sizes], named, bucket.sizes == highest.sizes
        )
        for bucket in entry.buckets
    ]
    return "\n".join([arena.legend(), *parts])


def error_text(proof: Proof | PaddingProof) -> str:
    """An error, and what it is in units in the last place."""
    return f"{proof.max_abs_error:.2e} ({proof.units:.3g} units)" if proof.max_abs_error else "0"


def _level(entry: EntryPoint) -> str:
    """What was proved."""
    text = "Errors are also given in units in the last place of the greatest number of their row."
    if any(bucket.proof and bucket.proof.sampled for bucket in entry.buckets):
        text += (
            " The recipe asks for a sample: every bucket was called once; the smallest and the largest were also "
            "called from states as calls leave them, and padded, with some of what padding may hold."
        )
    return f"<p>{text}</p>"


def _padding(entry: EntryPoint) -> str:
    rows = [
        [
            describe(entry, bucket.sizes),
            describe(entry, run.sizes),
            run.poison,
            error_text(run),
            "bit-identical" if run.identical else "within tolerance",
        ]
        for bucket in entry.buckets
        for run in (bucket.proof.padding if bucket.proof else ())
    ]
    if not rows:
        return "<p>No dimension is paddable.</p>"
    return _table(
        ["bucket", "real sizes", "padded with", "error against the original", "against neutral padding"], rows
    )


def _ops(program: Program) -> str:
    counts: dict[tuple[str, str], int] = {}
    for instruction in program.instructions:
        name = (program.ops[instruction.op].name, Form(instruction.form).name.lower())
        counts[name] = counts.get(name, 0) + 1
    rows = [[name, form, count] for (name, form), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    return _table(["op", "results handed over by", "distinct instructions"], rows)


def _quantised(made: Quantised) -> str:
    rows = [[name, f"{error:.2e}"] for name, error in made.layers.items()]
    return (
        f"<p>{made.linears} linear layers in {html.escape(made.scheme)}, over {html.escape(made.source)}: what the "
        f"model returns moves by {made.max_abs_error:.2e} at most and by {made.relative_error:.2e} of its norm, its "
        f"cosine is {made.cosine:.6f}.</p>" + _table(["layer", "how far its own answers move, of their norm"], rows)
    )


class _Raw(str):
    """Text that is HTML already."""


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    def cell(value: object) -> str:
        return value if isinstance(value, _Raw) else html.escape(str(value))

    lines = ["<table><tr>" + "".join(f"<th>{cell(name)}</th>" for name in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{cell(value)}</td>" for value in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def _nbytes(name: str, shape: Sequence[int]) -> int:
    from aotair_runtime.format.torch_names import dtype

    total = dtype(name).itemsize
    for size in shape:
        total *= size
    return total
