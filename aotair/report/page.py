"""Which pages does an artifact's report have? One in front, one for each entry point; without network."""

from collections.abc import Mapping

from aotair_runtime.format.schema import Program

from ..summary import Quantised
from .entry import Pictures, entry_page, name_of
from .frame import FRONT
from .front import front


def pages(
    program: Program,
    fusions: Mapping[str, tuple[int, int]],
    pictures: Pictures,
    quantised: Quantised | None = None,
) -> dict[str, str]:
    """The pages by their names in the artifact; the same for the same program. `fusions`: what each rule fused, and
    left alone; `quantised`: what `quantize` of the recipe did."""
    names = {FRONT: "Overview", **{name_of(entry): entry.name for entry in program.entry_points}}
    found = {FRONT: front(program, fusions, quantised, names)}
    return found | {name_of(entry): entry_page(program, entry, pictures, names) for entry in program.entry_points}
