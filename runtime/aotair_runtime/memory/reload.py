"""How much memory of the host does it take to give a loaded model other weights?"""

from collections.abc import Container, Mapping

from ..format.prologue import tensors
from ..format.schema import Program
from .sizes import fresh_bytes, tensor_bytes


def reload_bytes(program: Program, mapped: Container[int], packed: Mapping[int, int]) -> int:
    """The most that `load_weights` takes on the host, beside the checkpoint's file: copies of the old weights and
    states, and one weight at a time as it is read, made by the prologue, or packed.

    `mapped`: the constants that the model has in the file, so that other weights take pages of their own, which stay.
    `packed`: the bytes of those that the host packs, by number.
    """
    written = [constant for constant in program.constants if constant.kind != "fixed"]
    states = [program.constants[state.constant] for state in program.state]
    kept = sum(map(tensor_bytes, (*written, *states)))
    own = sum(tensor_bytes(c) for n, c in enumerate(program.constants) if n in mapped and c.kind != "fixed")
    return kept + own + max([*map(tensor_bytes, written), *_parts(program), *packed.values()], default=0)


def _parts(program: Program) -> list[int]:
    """What each part of the prologue takes: its arena and what its ops allocate beside it, what it makes, and what it
    reads, cast or moved."""
    there = tensors(program)
    return [
        program.prologue.arena
        + fresh_bytes(part.bucket)
        + sum(tensor_bytes(there[n]) for n in (*part.makes, *part.reads))
        for part in program.prologue.parts
    ]
