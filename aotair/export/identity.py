"""Which tensors of several graphs are one, and a name for each tensor that no other has.

torch.export numbers what it lifts out of the code in each graph anew, so that two entry points call two literals by
one name. What the graphs share is told by where it lies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..model.aliases import overlap, shared_memory
from .exported import Exported, NamedTensor

Identity = tuple[object, ...]  # what tells a tensor from others


def unified(exported: Sequence[Exported], entries: Sequence[str], tables: bool = True) -> list[Exported]:
    """The same graphs, with a name of its own for each tensor, and with what one of them mutates a state in all:
    another may only read it; what is a constant in all is marked as one. `entries` are the names of the entry points,
    `tables` says whether buckets may have tables made of buffers. Raises UnsupportedError."""
    found = _share_states(_unique_names(exported, entries))
    _refuse_overlaps(found)
    for one in found:
        one.mark_constants(tables)
    return found


def _unique_names(exported: Sequence[Exported], entries: Sequence[str]) -> list[Exported]:
    """What the model registers keeps its name; of others, who comes first."""
    named: dict[str, Identity] = {}
    for one in exported:
        for constant in _tensors(one).values():
            if constant.name in one.names.registered:
                named[constant.name] = _identity(constant)
    found = []
    for one, entry in zip(exported, entries, strict=True):
        renamed = {p: _renamed(constant, entry, named) for p, constant in _tensors(one).items()}
        found.append(
            replace(
                one,
                constants={placeholder: renamed[placeholder] for placeholder in one.constants},
                states={placeholder: renamed[placeholder] for placeholder in one.states},
            )
        )
    return found


def _renamed(constant: NamedTensor, entry: str, named: dict[str, Identity]) -> NamedTensor:
    """The constant under a name that stands for it alone, which `named` holds from then on."""
    identity, name, number = _identity(constant), constant.name, 0
    while named.get(name, identity) != identity:
        name = f"{entry}.{constant.name}" + (f".{number}" if number else "")
        number += 1
    named[name] = identity
    return replace(constant, name=name)


def _share_states(exported: Sequence[Exported]) -> list[Exported]:
    states = {_identity(constant): constant for one in exported for constant in one.states.values()}
    found = []
    for one in exported:
        moved = {p: states[_identity(c)] for p, c in _tensors(one).items() if _identity(c) in states}
        constants = {placeholder: c for placeholder, c in one.constants.items() if placeholder not in moved}
        found.append(replace(one, constants=constants, states={**one.states, **moved}))
    return found


def _refuse_overlaps(exported: Sequence[Exported]) -> None:
    """Raises UnsupportedError where one graph writes what another reads as a tensor of another kind: each would have
    memory of its own."""
    states = {_identity(constant): constant for one in exported for constant in one.states.values()}
    others = {_identity(constant): constant for one in exported for constant in _tensors(one).values()}
    for identity, state in states.items():
        for other_identity, other in others.items():
            if other_identity != identity and overlap(state.tensor, other.tensor):
                raise shared_memory(state.name, other.name)


def _tensors(one: Exported) -> Mapping[str, NamedTensor]:
    return {**one.constants, **one.states}


def _identity(constant: NamedTensor) -> Identity:
    """What tells a tensor from others: where it lies and how, if it has any bytes, and its name otherwise."""
    tensor = constant.tensor
    what = (tuple(tensor.shape), tensor.dtype, tensor.is_conj(), tensor.is_neg())
    return (tensor.data_ptr(), tensor.stride(), *what) if tensor.nbytes else (constant.name, *what)
