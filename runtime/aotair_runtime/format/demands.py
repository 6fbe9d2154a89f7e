"""How a rule of the format is demanded: what breaks it is named by its place in the program, before it is believed."""

from ..errors import MalformedError
from .schema import Program
from .torch_names import dtype

MAX_BYTES = 1 << 46


class Demands:
    """What all rules use. `where` is the artifact."""

    def __init__(self, program: Program, where: str):
        self.program, self.where = program, where

    def require(self, truth: bool, path: str, expected: str, got: object = None) -> None:
        if not truth:
            text = "" if got is None else repr(got)[:80]
            raise MalformedError(
                f"program.{path} breaks a rule of the format", where=self.where, expected=expected, got=text
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
