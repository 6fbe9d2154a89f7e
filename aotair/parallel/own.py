"""A model that shares itself out: its factory is called for each rank with a mesh, and what is found there is compared
with the whole model, which the same factory makes without one."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from aotair_runtime.format.mesh import part_of, ranks_of
from aotair_runtime.format.schema import Axis

from ..errors import ModelError
from ..recipe.entry import EntryJob
from .shown import shards_shown, whole_shown
from .split import Part, Split
from .stages import named_tensors
from .world import Make, world


@contextlib.contextmanager
def shares_itself(
    make: Make, model: nn.Module, mesh: Sequence[Axis], entries: Sequence[EntryJob], where: str
) -> Iterator[Split]:
    """Within, rank 0's model can be exported. `make` is the factory with the mesh as its only argument; `model` the
    whole one, with the weights that the artifact will have. Raises ModelError where a rank's tensor is no part of the
    whole."""
    from .by_torch import split_by_torch  # which imports what torch traces with

    whole = make(None)
    if (shared := split_by_torch(make, whole, model, mesh, entries, where)) is not None:
        yield shared
        return
    ranks: list[dict[str, Tensor]] = []
    for rank in range(1, ranks_of(mesh)):
        with world(mesh, rank, where) as place:
            ranks.append(_tensors(make(place), where))
    with world(mesh, 0, where) as place:
        own = make(place)
        named = [_tensors(own, where), *ranks]
        kept = _tensors(whole, where)  # but for what no checkpoint has, and each rank may have for itself
        kept = {name: tensor for name, tensor in kept.items() if name in whole.state_dict()}
        buffers = dict(own.named_buffers(remove_duplicate=False))
        shards = shards_shown(kept, named, mesh, buffers, where)
        values = _tensors(model, where)
        parts = {name: Part(whole_shown(name, values, named, shard, mesh), shard) for name, shard in shards.items()}
        if not parts:
            raise ModelError(
                "mesh: nothing of the model is shared out",
                where=where,
                expected="with a mesh, a factory whose model has parts of the whole one's tensors",
                got="all of them on every rank",
                fix="look whether the plan names modules of the model, or leave out mesh",
            )
        _put(own, values, parts)
        yield Split(own, parts, tuple(mesh), {}, {"by the model itself": len(parts)})


def _tensors(model: nn.Module, where: str) -> dict[str, Tensor]:
    found = dict(named_tensors(model))
    for name, tensor in found.items():
        if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
            raise ModelError(
                f"mesh: {name} is a {type(tensor).__name__}, which torch.export does not take",
                where=where,
                expected="plain tensors, those that the rank has",
                fix="keep plain parts in a module that calls functional collectives; or leave sharing out to the "
                "recipe: parallel: {PATTERN: STYLE}",
            )
    return {name: tensor.detach() for name, tensor in found.items()}


def _put(own: nn.Module, values: Mapping[str, Tensor], parts: Mapping[str, Part]) -> None:
    """Give rank 0's model its parts of the weights that the artifact will have."""
    for name, tensor in named_tensors(own):
        value = part_of(parts[name].whole, parts[name].shard, 0) if name in parts else values.get(name)
        if value is not None and value.shape == tensor.shape:
            tensor.data = value.clone() if name in parts else value
    own.eval().requires_grad_(False)
