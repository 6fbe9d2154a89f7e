"""How a rule of the format is demanded: what breaks it is named by its place in the program, before it is believed."""

import re
from collections.abc import Sequence

from ..errors import MalformedError
from .mesh import ranks_of
from .schema import PART, Axis, File, Program
from .torch_names import dtype

MAX_BYTES = 1 << 46
_MOST_AXES, _MOST_RANKS = 8, 1 << 16
DIGEST = re.compile(r"([0-9a-f]{64})?")
_AXIS = re.compile(r"[a-z][a-z0-9_]{0,15}")


class Rules:
    """What all rules use. `where` is the artifact, `root` what is looked at."""

    def __init__(self, where: str, root: str):
        self.where, self.root = where, root

    def require(self, truth: bool, path: str, expected: str, got: object = None) -> None:
        if not truth:
            text = "" if got is None else repr(got)[:80]
            raise MalformedError(
                f"{self.root}.{path} breaks a rule of the format", where=self.where, expected=expected, got=text
            )

    def index(self, value: int, count: int, path: str) -> None:
        self.require(0 <= value < count, path, f"a number from 0 to {count - 1}", value)

    def nbytes(self, name: str, shape: tuple[int, ...], path: str) -> int:
        self.require(all(0 <= size < MAX_BYTES for size in shape), path, "sizes that are not negative", shape)
        total = dtype(name, self.where).itemsize
        for size in shape:
            total *= size
        self.require(total < MAX_BYTES, path, "a tensor of a possible size", total)
        return total

    def axes(self, mesh: Sequence[Axis], path: str) -> None:
        """The axes of the ranks that run a program together."""
        names = [axis.name for axis in mesh]
        fits = len(mesh) <= _MOST_AXES and len({*names}) == len(names) and all(map(_AXIS.fullmatch, names))
        self.require(fits, path, f"at most {_MOST_AXES} axes with names of their own", names)
        self.require(all(1 <= axis.size <= _MOST_RANKS for axis in mesh), path, "possible numbers of ranks", mesh)
        self.require(ranks_of(mesh) <= _MOST_RANKS, path, f"at most {_MOST_RANKS} ranks", ranks_of(mesh))

    def files(self, files: Sequence[File], path: str) -> None:
        """The lengths and digests of other files."""
        for i, file in enumerate(files):
            self.require(0 <= file.nbytes < MAX_BYTES, f"{path}[{i}].nbytes", "a possible number of bytes", file.nbytes)
            count = -(-file.nbytes // PART)
            fits = len(file.parts) in (0, count) and all(part and DIGEST.fullmatch(part) for part in file.parts)
            self.require(fits, f"{path}[{i}].parts", f"{count} digests or none", len(file.parts))


class Demands(Rules):
    """The same of a program."""

    def __init__(self, program: Program, where: str):
        super().__init__(where, "program")
        self.program = program
