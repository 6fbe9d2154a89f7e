"""How much memory of the host does it take to give a loaded model other weights?"""

from collections.abc import Callable

from ..format.packed import packed_constants
from ..format.prologue import tensors
from ..format.schema import Constant, Program
from .sizes import fresh_bytes, tensor_bytes


def reload_bytes(program: Program, mapped: bool, packed: Callable[[Constant, str], int]) -> int:
    """The most that `load_weights` takes on the host, beside the checkpoint's file: copies of the old weights and
    states, and one weight at a time as it is read, made by the prologue, or packed.

    `mapped`: whether the model reads its weights from the file, so that other weights take pages of their own, which
    stay. `packed` gives the bytes of a constant that is packed for an op.
    """
    written = [constant for constant in program.constants if constant.kind != "fixed"]
    states = [program.constants[state.constant] for state in program.state]
    kept = sum(map(tensor_bytes, (*written, *states)))
    own = sum(map(tensor_bytes, written)) if mapped else 0
    return kept + own + max([*map(tensor_bytes, written), *_parts(program), *_packed(program, packed)], default=0)


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


def _packed(program: Program, packed: Callable[[Constant, str], int]) -> list[int]:
    return [packed(program.constants[number], op) for number, op in packed_constants(program)]
