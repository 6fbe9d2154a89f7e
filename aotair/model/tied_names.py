"""Which names of a model's checkpoint a tensor goes by, and which tensors no checkpoint has."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from aotair_runtime.format.joined import piece_names
from aotair_runtime.format.schema import Constant, Joined

JOINED = "_held_in_pieces"  # where a module keeps what its checkpoints hold in pieces, by the names that it has within


@dataclass(frozen=True)
class Names:
    """`tied`: for each name of the model's state dict all names of the same memory, the first one first. `registered`:
    what the model calls its parameters and buffers, persistent or not. `joined`: what checkpoints hold in pieces."""

    tied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    registered: frozenset[str] = frozenset()
    joined: tuple[Joined, ...] = ()

    def group(self, name: str) -> tuple[str, ...]:
        """All names of the tensor that goes by `name`."""
        return self.tied.get(name, (name,))

    def kind(self, name: str) -> str:
        """The `kind` of a schema.Constant."""
        return "weight" if name in self.tied else "fixed"

    def unread(self, constants: Iterable[Constant]) -> tuple[str, ...]:
        """The checkpoint's names that none of the constants stands for."""
        read = {name for constant in constants for group in constant.names for name in group}
        return tuple(name for name in self.tied if name not in read)


def names_of(model: torch.nn.Module) -> Names:
    """Those of a model, as it stands."""
    places: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            places.setdefault(_place(tensor), []).append(name)
    registered: set[str] = set()
    # A buffer that is not persistent may be a weight by another name, and so is a parameter that the model renames when
    # it is saved.
    own = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    for name, tensor in own:
        group = places.get(_place(tensor), [name])
        group += [] if name in group else [name]
        registered.add(name)
    tied = {name: tuple(group) for group in places.values() for name in group}
    return Names(tied, frozenset(registered), _of_tensors([*_joined(model)], tied.keys()))


def _of_tensors(items: Sequence[Joined], names: Collection[str]) -> tuple[Joined, ...]:
    """Those that one of these tensors is made of: itself, and what its pieces are made of, which come before it."""
    own = [item for item in items if item.name in names]
    pieces = {name for item in own for name in piece_names(item)}
    return (*(item for item in items if item.name in pieces and item not in own), *own)


def _joined(model: torch.nn.Module) -> Iterator[Joined]:
    """What the modules within say of their checkpoints, by the model's names."""
    for path, module in model.named_modules():
        before = f"{path}." if path else ""
        for item in getattr(module, JOINED, ()):
            yield replace(item, name=before + item.name, pieces=tuple(before + piece for piece in item.pieces))


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for two tensors of the same memory: those are tied, whether they are one object or not."""
    if not tensor.numel() or tensor.is_meta:
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())
