"""The front page of a report: what an artifact is, what it takes and how near it is to the original."""

from collections.abc import Iterator, Mapping

from aotair_runtime.format.mesh import mesh_text, ranks_of
from aotair_runtime.format.prologue import follows_from
from aotair_runtime.format.schema import EntryPoint, Form, Program
from aotair_runtime.format.sizes import shape_text
from aotair_runtime.format.torch_names import dtype

from ..promise import promised
from ..summary import Quantised
from .entry import error_text, name_of
from .frame import FRONT, PASSES, document, escaped, link, table


def front(
    program: Program,
    fusions: Mapping[str, tuple[int, int]],
    quantised: Quantised | None,
    pages: Mapping[str, str],
    others: Mapping[str, str],
) -> str:
    """The page. `fusions`: what each rule fused, and left alone; `quantised`: what `quantize` of the recipe did;
    `others`: by their meshes, the front pages of the artifact's other programs."""
    body = "\n".join([*_of_several(program, others), *_sections(program, fusions, quantised, pages)])
    return document(program.name, body, FRONT, pages)


def _sections(
    program: Program, fusions: Mapping[str, tuple[int, int]], quantised: Quantised | None, pages: Mapping[str, str]
) -> Iterator[str]:
    yield _about(program)
    yield "<h2>Entry points</h2>" + _entries(program)
    yield "<h2>Memory promised</h2>" + _memory(program)
    if program.prologue.parts:
        made = [[name, ", ".join(names)] for name, names in follows_from(program).items()]
        yield "<h2>Weights made of others</h2>" + table(["tensor", "of"], made, kind="words")
    if quantised is not None:
        yield "<h2>Quantised layers</h2>" + _quantised(quantised)
    if fusions:
        rows = [[name, done, left] for name, (done, left) in fusions.items()]
        yield "<h2>Fusion</h2>" + table(["rule", "fused", "nearest misses"], rows)
    if PASSES in pages:
        yield f"<p>{link(PASSES, 'What each pass changed and left alone', FRONT)}, and why.</p>"
    yield "<h2>Ops</h2>" + _ops(program)


def _about(program: Program) -> str:
    need = program.requirements
    weights = sum(_nbytes(item.dtype, item.shape) for item in program.constants)
    return (
        f"<p>Built with torch {escaped(need.torch_built)}; needs torch {escaped(need.torch_min)} or newer "
        f"and the device <code>{escaped(need.device)}</code>. "
        f"{len(program.constants)} distinct weights, {weights:,} bytes; "
        f"one arena of {program.arena:,} bytes for all buckets.{_ranks(program)}</p>"
    )


def _ranks(program: Program) -> str:
    """How many ranks run it together, if several do: what is said of memory is each one's."""
    if not program.mesh:
        return ""
    shared = sum(constant.shard is not None for constant in program.constants)
    return (
        f" {ranks_of(program.mesh)} ranks ({escaped(mesh_text(program.mesh))}) run it and share {shared} weights out."
    )


def _of_several(program: Program, others: Mapping[str, str]) -> Iterator[str]:
    """For which mesh this program is, where the artifact has several."""
    if others:
        links = ", ".join(f'<a href="{escaped(page)}">{escaped(mesh)}</a>' for mesh, page in others.items())
        yield f"<p>This is the program for {escaped(mesh_text(program.mesh))}. The artifact has others: {links}.</p>"


def _entries(program: Program) -> str:
    rows = [
        [
            link(name_of(entry), entry.name, FRONT),
            ", ".join(f"{item.name} {shape_text(entry, item.shape)}" for item in entry.inputs),
            len(entry.buckets),
            f"{max(len(bucket.code) for bucket in entry.buckets):,}",
            f"{max(bucket.height for bucket in entry.buckets):,}",
            _worst(entry),
        ]
        for entry in program.entry_points
    ]
    head = ["entry point", "inputs", "buckets", "most instructions", "most arena bytes", "largest error"]
    return table(head, rows)


def _worst(entry: EntryPoint) -> str:
    """The largest error that a proof of any bucket met."""
    proofs = [bucket.proof for bucket in entry.buckets if bucket.proof]
    if len(proofs) < len(entry.buckets):
        return "not proved"
    return error_text(max(proofs, key=lambda proof: proof.max_abs_error))


def _memory(program: Program) -> str:
    found = promised(program)
    rows = [[item.name, f"{item.nbytes:,}", f"{item.reserved:,}"] for item in found.items]
    rows.append(["in all", f"{found.nbytes:,}", f"{found.reserved:,}"])
    rows.append(["at the peak, while it loads or is called", "", f"{found.peak:,}"])
    kind = escaped(found.kind)
    return f"<p>What a load takes on the device <code>{kind}</code>.</p>" + table(["what", "bytes", "reserved"], rows)


def _ops(program: Program) -> str:
    counts: dict[tuple[str, str], int] = {}
    for instruction in program.instructions:
        name = (program.ops[instruction.op].name, Form(instruction.form).name.lower())
        counts[name] = counts.get(name, 0) + 1
    rows = [[name, form, count] for (name, form), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    return table(["op", "results handed over by", "distinct instructions"], rows)


def _quantised(made: Quantised) -> str:
    rows = [[name, f"{error:.2e}"] for name, error in made.layers.items()]
    kinds = " and ".join(f"{number} {escaped(what)}" for what, number in made.kinds())
    return (
        f"<p>{kinds}, over {escaped(made.source)}: what the "
        f"model returns moves by {made.max_abs_error:.2e} at most and by {made.relative_error:.2e} of its norm, its "
        f"cosine is {made.cosine:.6f}.</p>" + table(["layer", "how far its own answers move, of their norm"], rows)
    )


def _nbytes(name: str, shape: tuple[int, ...]) -> int:
    total = dtype(name).itemsize
    for size in shape:
        total *= size
    return total
