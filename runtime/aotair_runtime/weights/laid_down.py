"""Where do the constants and states of an artifact lie once it is loaded, and which of them are packed?"""

from collections.abc import Sequence

import torch

from ..artifact.open import Artifact
from ..artifact.pages import give_back
from ..capture.graphs import Resident
from ..devices import Device, Packed, large_pages
from ..devices.forms import packs
from ..errors import MalformedError
from ..format.packed import needs_packed, packed_constants
from ..memory.packed import packed_bytes, plain_elsewhere


def laid_down(artifact: Artifact, device: Device, pack_weights: bool) -> Resident:
    """The tensors of a model on a device. Raises MalformedError where a kernel cannot read a weight that it needs
    packed."""
    constants = _placed(artifact, device, pack_weights)
    states = device.copies([constants[state.constant] for state in artifact.program.state])
    sizes = packed_bytes(artifact.program, device.kind, pack_weights) if device.is_host else {}
    with large_pages.room(list(sizes.values())):
        packed = _packed(artifact, constants, device, pack_weights)
    if device.is_host:
        for number in artifact.in_file & {number for number, _ in packed}:
            if constants[number].data_ptr() == artifact.constants[number].data_ptr():
                give_back(constants[number])
    return Resident(constants, states, packed)


def _placed(artifact: Artifact, device: Device, pack_weights: bool) -> tuple[torch.Tensor, ...]:
    """The constants where the device can read them; those that it has packed alone, as they lie in the file."""
    found = list(artifact.constants)
    elsewhere = plain_elsewhere(artifact.program, device.kind, pack_weights)
    numbers = [number for number in range(len(found)) if number not in elsewhere]
    for number, placed in zip(numbers, device.place([found[number] for number in numbers]), strict=True):
        found[number] = placed
    return tuple(found)


def _packed(
    artifact: Artifact, constants: Sequence[torch.Tensor], device: Device, pack_weights: bool
) -> dict[tuple[int, str], Packed]:
    """The constants that instructions read packed, where the device has a form for them."""
    made: dict[int, Packed | None] = {}
    found: dict[tuple[int, str], Packed] = {}
    for number, op in packed_constants(artifact.program):
        needed = needs_packed(device.kind, op)
        wanted = (pack_weights or needed) and packs(device.kind, op, constants[number].dtype)
        if wanted and number not in made:
            made[number] = device.packed(constants[number], op)
        if wanted and (one := made[number]) is not None:
            found[number, op] = one
        elif needed:
            raise MalformedError(
                f"{op} cannot read the constant {artifact.program.constants[number].name}", where=str(artifact.path)
            )
    return found
