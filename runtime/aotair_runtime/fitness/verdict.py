"""Does an artifact run on this node? The answer, with a row for each requirement."""

from dataclasses import asdict, dataclass
from typing import Literal

from ..errors import shown
from ..format.text import table

Standing = Literal["met", "slower", "missing"]
Answer = Literal["runs here", "runs here slower", "cannot"]


@dataclass(frozen=True)
class Requirement:
    """One thing that an artifact asks of a node. `standing`: "met", "slower" (it runs without), "missing" (it does
    not); `fix`: what to do about it."""

    name: str
    demanded: str
    has: str
    standing: Standing = "met"
    fix: str = ""


@dataclass(frozen=True)
class Verdict:
    """What `check` found. `device` is where it would run: to be given to `load` where it is not the artifact's own."""

    path: str
    name: str
    device: str
    requirements: tuple[Requirement, ...]

    @property
    def answer(self) -> Answer:
        standings = {item.standing for item in self.requirements}
        return "cannot" if "missing" in standings else "runs here slower" if "slower" in standings else "runs here"

    @property
    def runs(self) -> bool:
        """Whether a load on `device` is not refused for what the node lacks."""
        return self.answer != "cannot"

    @property
    def reasons(self) -> tuple[Requirement, ...]:
        """The requirements that are not met."""
        return tuple(item for item in self.requirements if item.standing != "met")

    def as_dict(self) -> dict[str, object]:
        return {"answer": self.answer, **asdict(self)}

    def __str__(self) -> str:
        rows = [[item.name, item.standing, item.demanded, item.has] for item in self.requirements]
        lines = [f"{_cut(self.name)}: {self.answer}" + (f", on {self.device}" if self.runs else "")]
        lines += ["", left_aligned(["requirement", "", "demanded", "this node has"], rows)]
        fixes = [f"{item.name}: {item.fix}" for item in self.reasons if item.fix]
        return shown("\n".join([*lines, "", *fixes] if fixes else lines))


def left_aligned(head: list[str], rows: list[list[str]]) -> str:
    """A table of texts; what does not fit into a line is cut."""
    cells = [[_cut(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths)] for row in cells]
    return table(padded[0], padded[1:])


def _cut(text: str, most: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
