"""Which pages does an artifact's report have? One in front, one of the passes, one for each entry point; no network."""

import posixpath
from collections.abc import Mapping, Sequence

from aotair_runtime.format.mesh import mesh_name, mesh_text
from aotair_runtime.format.schema import REPORT_FOLDER, Program

from ..diff.flow import constant_names
from ..program import Built
from ..summary import Quantised
from .drawing import drawing
from .entry import entry_page, name_of
from .explain import Explained
from .frame import FRONT, PASSES
from .front import front
from .passes import passes_page


def pages_of_all(
    programs: Sequence[Program],
    built: Sequence[Built],
    explained: Sequence[Explained],
    quantised: Quantised | None = None,
) -> dict[str, str]:
    """The pages of an artifact with these programs: of several for several meshes those of the first, and in a folder
    for each of the others its own; their front pages lead to each other."""
    fronts = [_below(program) + FRONT if number else FRONT for number, program in enumerate(programs)]
    found: dict[str, str] = {}
    for number, program in enumerate(programs):
        place = fronts[number].removesuffix(FRONT)
        others = {
            mesh_text(other.mesh): posixpath.relpath(front, place or ".")
            for other, front in zip(programs, fronts)
            if other is not program
        }
        mine = pages(program, built[number], explained[number], quantised, others)
        found |= {place + name: page for name, page in mine.items()}
    return found


def _below(program: Program) -> str:
    """The folder of a program's own pages."""
    return f"{REPORT_FOLDER}/{mesh_name(program.mesh)}/"


def pages(
    program: Program,
    built: Built,
    explained: Explained,
    quantised: Quantised | None = None,
    others: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The pages by their names in the artifact; the same for the same build. `program`: that of `built`, proved;
    `quantised`: what `quantize` of the recipe did; `others`: by their meshes, the front pages of other programs."""
    names = {FRONT: "Overview"}
    names |= {PASSES: "Passes"} if explained.records else {}
    names |= {name_of(entry): entry.name for entry in program.entry_points}
    found = {FRONT: front(program, explained.counts(), quantised, names, others or {})}
    if explained.records:
        found[PASSES] = passes_page(program.name, explained.records, names)
    constants = constant_names(program)
    for entry in program.entry_points:
        graph = drawing(program, entry, constants, built.debug)
        found[name_of(entry)] = entry_page(program, entry, built.pictures, graph, names)
    return found
