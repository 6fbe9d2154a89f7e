"""What do the parts of a prologue make? Derived constants, computed on the host from the tensors of a checkpoint."""

from collections.abc import Callable, Mapping, Sequence

import torch

from ..capture.bind import Memory, bind
from ..devices import open_device
from ..format.prologue import as_program, tensors
from ..format.schema import Part, Program
from ..format.torch_names import dtype

_ALIGNMENT = 64  # bytes
Read = Callable[[int], torch.Tensor]


def derived(program: Program, ops: Sequence[torch._ops.OpOverload], read: Read) -> Mapping[int, torch.Tensor]:
    """All derived constants by number. `ops` are the program's, resolved; `read` gives a tensor of a checkpoint, by its
    number among `format.prologue.tensors`, with the dtype and the shape that the program says."""
    found: dict[int, torch.Tensor] = {}
    for part in program.prologue.parts:
        found |= made_by(program, part, ops, read)
    return found


def made_by(
    program: Program, part: Part, ops: Sequence[torch._ops.OpOverload], read: Read
) -> Mapping[int, torch.Tensor]:
    """What one part makes, by number, in memory of its own.

    The same values give the same bytes, at a build and at a reload: what is read lies aligned, and kernels run on the
    host. Raises CaptureError where an instruction fails.
    """
    there = tensors(program)
    made = [torch.empty(there[number].shape, dtype=dtype(there[number].dtype)) for number in part.makes]
    given = [_aligned(read(number)) for number in part.reads]
    host = open_device("cpu")
    memory = Memory(host.space(program.prologue.arena), given, (), dict(enumerate(made)))
    names = ", ".join(there[number].name for number in part.makes)
    bind(as_program(program, part), part.bucket, memory, ops, host.torch_device, f"the prologue of {names}").run()
    return dict(zip(part.makes, made))


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the host without gaps, or a copy where a mapped file has it at an odd address: products of
    matrices may differ by where these lie."""
    plain = tensor.detach().cpu().contiguous()
    return plain.clone() if plain.data_ptr() % _ALIGNMENT else plain
