"""Which pages does an artifact's report have? One in front, one of the passes, one for each entry point; no network."""

from aotair_runtime.format.schema import Program

from ..diff.flow import constant_names
from ..program import Built
from ..summary import Quantised
from .drawing import drawing
from .entry import entry_page, name_of
from .explain import Explained
from .frame import FRONT, PASSES
from .front import front
from .passes import passes_page


def pages(program: Program, built: Built, explained: Explained, quantised: Quantised | None = None) -> dict[str, str]:
    """The pages by their names in the artifact; the same for the same build. `program`: that of `built`, proved;
    `quantised`: what `quantize` of the recipe did."""
    names = {FRONT: "Overview"}
    names |= {PASSES: "Passes"} if explained.records else {}
    names |= {name_of(entry): entry.name for entry in program.entry_points}
    found = {FRONT: front(program, explained.counts(), quantised, names)}
    if explained.records:
        found[PASSES] = passes_page(program.name, explained.records, names)
    constants = constant_names(program)
    for entry in program.entry_points:
        graph = drawing(program, entry, constants, built.debug)
        found[name_of(entry)] = entry_page(program, entry, built.pictures, graph, names)
    return found
