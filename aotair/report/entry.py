"""The page of one entry point: inputs and outputs, buckets, what lies where in their arenas, and their proofs."""

from collections.abc import Iterator, Mapping

from aotair_runtime.format.schema import REPORT_FOLDER, EntryPoint, PaddingProof, Program, Proof
from aotair_runtime.format.sizes import describe, shape_text

from ..plan.picture import Picture
from . import arena, drawing
from .frame import Raw, document, table

_NAMED = 6_000  # rectangles that can be hovered over, on the whole page
_NAMED_EACH = 100  # and in each bucket at least

Pictures = Mapping[tuple[str, tuple[int, ...]], Picture]  # by entry point and bucket


def name_of(entry: EntryPoint) -> str:
    """What the page is called in the artifact."""
    return f"{REPORT_FOLDER}/{entry.name}.html"


def entry_page(program: Program, entry: EntryPoint, pictures: Pictures, graph: str, pages: Mapping[str, str]) -> str:
    """The page; `graph` is what `drawing.drawing` makes of the entry point."""
    body = "\n".join(_sections(program, entry, pictures, graph))
    title = f"{program.name}: {entry.name}"
    return document(title, body, name_of(entry), pages, arena.STYLE + drawing.STYLE, drawing.SCRIPTS)


def _sections(program: Program, entry: EntryPoint, pictures: Pictures, graph: str) -> Iterator[str]:
    yield "<h2>Inputs and outputs</h2>" + _interface(entry)
    yield "<h2>Buckets</h2>" + _buckets(program, entry)
    yield "<h2>The graph, module by module</h2>" + graph
    if pictures:  # none where the plans are another artifact's
        yield "<h2>The arena, step by step</h2>" + _arenas(entry, pictures)
    yield "<h2>Padding proofs</h2>" + _level(entry) + _padding(entry)


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
    return table(["tensor", "dtype", "shape", "class", "pad"], rows)


def _buckets(program: Program, entry: EntryPoint) -> str:
    rows = []
    for bucket in entry.buckets:
        share = round(100 * bucket.height / max(1, program.arena))
        rows.append(
            [
                describe(entry, bucket.sizes),
                f"{len(bucket.code):,}",
                f"{bucket.height:,}",
                f"{bucket.lower_bound:,}",
                error_text(bucket.proof) if bucket.proof else "not proved",
                Raw(f'<progress max="100" value="{share}" aria-label="share of the arena">{share} %</progress>'),
            ]
        )
    return table(["bucket", "instructions", "arena bytes", "lower bound", "largest error", "of the arena"], rows)


def _arenas(entry: EntryPoint, pictures: Pictures) -> str:
    """A drawing for each bucket; the highest is open."""
    named = max(_NAMED // len(entry.buckets), _NAMED_EACH)
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
    head = ["bucket", "real sizes", "padded with", "error against the original", "against neutral padding"]
    return table(head, rows, kind="words")
