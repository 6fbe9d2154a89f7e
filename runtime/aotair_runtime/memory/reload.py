"""How much memory of the host does it take to give a loaded model other weights?"""

import math
from collections.abc import Container, Mapping

from ..format.mesh import whole_shape
from ..format.prologue import tensors
from ..format.schema import Program
from ..format.torch_names import dtype
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
    largest = [*map(tensor_bytes, written), *_put_together(program), *_parts(program), *packed.values()]
    return kept + own + max(largest, default=0)


def _put_together(program: Program) -> list[int]:
    """What tensors of a checkpoint take that are made of pieces, of which a rank takes its part then: the whole, or
    where each stage's is apart, that of its stage."""
    pieces = {item.name: 0 if item.count else len(item.pieces) for item in program.joined}
    found = []
    for constant in tensors(program):
        for name in (name for group in constant.names for name in group if name in pieces):
            shard = constant.shard
            apart = shard.parts if shard is not None and (shard.dim, pieces[name]) == (0, shard.parts) else 1
            whole = math.prod(whole_shape(constant)) * dtype(constant.dtype).itemsize
            found.append(whole // apart + (0 if shard is None else tensor_bytes(constant)))
    return found


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
