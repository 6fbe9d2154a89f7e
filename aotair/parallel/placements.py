"""How does torch.distributed share a tensor out (DTensor, as parallelize_module makes it)? As a program says it."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor import Shard as Sharded
from torch.distributed.tensor.placement_types import Placement

from aotair_runtime.format.mesh import again
from aotair_runtime.format.schema import Axis, Shard

from ..errors import ModelError
from .stages import named_tensors


def shared_by_torch(model: nn.Module) -> dict[str, DTensor]:
    """The tensors of a model that are shared out, by name."""
    return {name: plain for name, tensor in named_tensors(model) if isinstance(plain := _plain(tensor), DTensor)}


def _plain(tensor: Tensor) -> Tensor:
    return tensor.data if isinstance(tensor, nn.Parameter) else tensor


def shard_of(name: str, tensor: DTensor, mesh: Sequence[Axis], where: str) -> Shard | None:
    """How ranks have the tensor; None where each has all of it. Raises ModelError for what no program can say."""
    cuts: list[Shard] = []
    shape = list(tensor.shape)
    for axis, placement in zip(_axes(tensor.device_mesh, mesh), tensor.placements, strict=True):
        if isinstance(placement, Replicate) or mesh[axis].size == 1:
            continue
        if type(placement) is not Sharded:
            raise _cannot(name, placement, where)
        dim = placement.dim % tensor.dim()
        if shape[dim] % mesh[axis].size:
            raise ModelError(
                f"mesh: {name} {list(tensor.shape)} cannot be cut evenly along {mesh[axis].name}",
                where=where,
                expected=f"a multiple of {mesh[axis].size} in dimension {dim}",
                fix="choose a number of ranks that divides it, or leave its module out of the plan",
            )
        shape[dim] //= mesh[axis].size
        cuts.append(Shard(axis, dim, mesh[axis].size))
    if len(cuts) > 2:
        raise _cannot(name, tensor.placements, where)
    return one_after_the_other(cuts) if cuts else None


def one_after_the_other(cuts: Sequence[Shard]) -> Shard:
    """One cut, or two, as a tensor has them."""
    return cuts[0] if len(cuts) == 1 else again(cuts[0], cuts[1])


def _axes(device_mesh: DeviceMesh, mesh: Sequence[Axis]) -> list[int]:
    """The numbers of the axes of the mesh that a tensor's own one has."""
    names = device_mesh.mesh_dim_names or ()
    return [next(number for number, axis in enumerate(mesh) if axis.name == name) for name in names]


def _cannot(name: str, placement: Placement | Sequence[Placement], where: str) -> ModelError:
    return ModelError(
        f"mesh: {name} is shared out in a way that no artifact has",
        where=where,
        expected="Replicate() or Shard(DIM) along each axis, and at most two that cut",
        got=str(placement),
    )


def as_torch_has_it(tensor: DTensor, local: Tensor) -> DTensor:
    """The same shared tensor over other numbers of this rank."""
    return DTensor.from_local(
        local, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def whole(value: object) -> object:
    """All of a result that is shared out; of another, what it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value
